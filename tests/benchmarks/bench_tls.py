"""What TLS costs a send, and what a port costs that also speaks it: three brokers take turns."""

import os
import ssl
import subprocess

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread

COST = "cpu_us_per_message"


def tls(bench, plan):
    """Ratios of the CPU for a message to that at a port with ``tls.mode = disabled``."""
    certificate, key = _certificate(bench.new_folder())
    settings = [f"tls.certificate={certificate}", f"tls.key={key}"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turns = []
    with (
        bench.broker() as off,
        bench.broker(settings=[*settings, "tls.mode=permissive"]) as both,
    ):
        ways = {"off": (off, None), "plain": (both, None), "tls": (both, context)}
        for turn in range(plan.turns + 1):
            found = {}
            for name, (server, way) in ways.items():
                os.sync()
                found[name] = bench_driver.measured_sends(
                    server, frames, plan.turn_s, warm_up_s=TURN_WARM_UP_S, context=way
                )[COST]
            if turn:  # The first warms the servers up.
                turns.append(found)
    return {
        "in_flight": COMPARED_AT,
        "turns": len(turns),
        "plain_over_off": spread([turn["plain"] / turn["off"] for turn in turns]),
        "tls_over_off": spread([turn["tls"] / turn["off"] for turn in turns]),
        "medians": {name: spread([turn[name] for turn in turns])["median"] for name in ways},
    }


def _certificate(folder):
    certificate, key = folder / "server.pem", folder / "server.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words += ["-nodes", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], capture_output=True, check=True)
    key.chmod(0o600)
    return certificate, key
