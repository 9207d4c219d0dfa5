"""Makes certificates with the openssl program, as `docs/howto/secure.md` does."""

import subprocess
from pathlib import Path

ANSWER_SECONDS = 30
NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split()
HERE = "IP:127.0.0.1,DNS:localhost"


class Authority:
    """An authority of its own, with its files in a folder."""

    def __init__(self, folder, name="Test CA"):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        request("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate)

    def issue(self, name, subject=None, *, addresses=HERE, days=2):
        """The files of a new certificate and its key, which replace those of the same name."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request(
            *("-CA", self.certificate, "-CAkey", self._key, "-days", str(days)),
            *("-subj", subject or f"/CN={name}", "-addext", f"subjectAltName={addresses}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", key, "-out", certificate),
        )
        key.chmod(0o600)
        return certificate, key


def request(*words):
    subprocess.run(
        ["openssl", "req", "-x509", *NEW_KEY, *words],
        check=True,
        capture_output=True,
        timeout=ANSWER_SECONDS,
    )
