"""Makes certificates as the commands in `docs/howto/tls.md` do, without the openssl program."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

HERE = "IP:127.0.0.1,DNS:localhost"
NAMES = {
    "C": NameOID.COUNTRY_NAME,
    "CN": NameOID.COMMON_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "UID": NameOID.USER_ID,
}


class Authority:
    """An authority of its own, with its files in a folder."""

    def __init__(self, folder, name="Test CA"):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = self.folder / "ca.pem"
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), name_of(f"CN={name}")
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self._name, self._key, days=30).add_extension(
            constraints, critical=True
        )
        write_certificate(self.certificate, own.sign(self._key, SHA256()))

    def context(self, pair=None):
        """A client's context that trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.certificate)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def issue(self, name, subject=None, *, addresses=HERE, days=2):
        """The files of a new certificate and its key, which replace those of the same name.

        Args:
            name: The name of the files.
            subject: Its parts, such as `O=Bank/CN=web-shop`; by default the name alone.
            addresses: What it is valid for.
            days: How long it is valid from now on; a negative number makes one that has expired.
        """
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        own = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name_of(subject or f"CN={name}"), own, days)
        builder = builder.add_extension(alternative_names(addresses), critical=False)
        write_certificate(certificate, builder.sign(self._key, SHA256()))
        write_key(key, own)
        return certificate, key

    def _builder(self, subject, key, days):
        now = dt.datetime.now(dt.UTC)
        # A certificate that has expired was valid the day before.
        start = now + dt.timedelta(days=min(days - 1, 0))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )


def name_of(subject):
    """The name that has these parts."""
    parts = [part.split("=", 1) for part in subject.split("/")]
    return x509.Name([x509.NameAttribute(NAMES[kind], value) for kind, value in parts])


def alternative_names(addresses):
    """The extension with these addresses, such as `IP:127.0.0.1,DNS:localhost`."""
    names = []
    for address in addresses.split(","):
        kind, _, value = address.partition(":")
        if kind == "IP":
            names.append(x509.IPAddress(ipaddress.ip_address(value)))
        else:
            names.append(x509.DNSName(value))
    return x509.SubjectAlternativeName(names)


def write_certificate(path, certificate):
    path.write_bytes(certificate.public_bytes(Encoding.PEM))


def write_key(path, key, password=None):
    """Write a key that only its owner may read."""
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    path.chmod(0o600)


def lock(path, target, password):
    """Write a key again, so that it needs a password."""
    write_key(target, load_pem_private_key(path.read_bytes(), None), password)
