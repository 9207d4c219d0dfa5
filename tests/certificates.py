"""Makes certificates with the openssl program, as `docs/howto/tls.md` does."""

import ssl
import subprocess
from pathlib import Path

ANSWER_SECONDS = 30
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
HERE = "IP:127.0.0.1,DNS:localhost"


class Authority:
    """An authority of its own, with its files in a folder."""

    def __init__(self, folder, name="Test CA"):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        subject = ("-subj", f"/CN={name}")
        openssl("req", "-x509", *NEW_KEY, *subject, "-keyout", self._key, "-out", self.certificate)

    def context(self, pair=None):
        """A client's context that trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.certificate)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def issue(self, name, subject=None, *, addresses=HERE, days=2):
        """The files of a new certificate and its key, which replace those of the same name."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request = certificate.with_suffix(".csr")
        openssl(
            *("req", "-new", *NEW_KEY, "-subj", subject or f"/CN={name}"),
            *("-addext", f"subjectAltName={addresses}", "-keyout", key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-days", str(days), "-copy_extensions", "copy", "-out", certificate),
        )
        key.chmod(0o600)
        return certificate, key


def openssl(*words):
    done = subprocess.run(
        ["openssl", *words], check=False, capture_output=True, text=True, timeout=ANSWER_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
