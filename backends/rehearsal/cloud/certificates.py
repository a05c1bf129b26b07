"""A certificate authority of the rehearsal's own, and a certificate for every host it plays."""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365
_RENEW_BEFORE = timedelta(days=30)


class Certificates:
    """Certificates below one folder; the authority is made once and kept.

    Args:
        folder: Where they are kept, readable by their owner only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority_file = folder / "ca.pem"
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._key, self._authority = self._load() or self._make()
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())

    def context(self, host: str) -> ssl.SSLContext:
        """The server side of TLS for one host name."""
        known = self._contexts.get(host)
        if known is None:
            known = self._contexts[host] = self._make_context(host)
        return known

    def _load(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None:
        try:
            authority = x509.load_pem_x509_certificate(self.authority_file.read_bytes())
            key = serialization.load_pem_private_key(
                (self._folder / "ca.key").read_bytes(), password=None
            )
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            return None
        if authority.not_valid_after_utc < datetime.now(UTC) + _RENEW_BEFORE:
            return None
        return key, authority

    def _make(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "vllm-devops rehearsal cloud (not Google)")]
        )
        authority = (
            self._builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self._folder / "ca.key", _private(key))
        _write(self.authority_file, authority.public_bytes(serialization.Encoding.PEM))
        return key, authority

    def _make_context(self, host: str) -> ssl.SSLContext:
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        # A common name holds 64 characters at most; clients look at the alternative name.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        leaf = (
            self._builder(subject, self._authority.subject, self._leaf_key.public_key())
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"leaf-{os.getpid()}.pem"
        try:
            chain = leaf.public_bytes(serialization.Encoding.PEM)
            _write(file, _private(self._leaf_key) + chain)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
        finally:
            file.unlink(missing_ok=True)
        # Only HTTP/1.1: gRPC would need HTTP/2, and is told so at once instead of hanging.
        context.set_alpn_protocols(["http/1.1"])
        return context

    @staticmethod
    def _builder(
        subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=_DAYS))
        )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
