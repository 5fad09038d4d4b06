"""Addresses, ports and certificates: who can reach the server, and whether it can listen."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import ssl
from pathlib import Path

from tensortap.errors import UsageError

__all__ = ["bracketed", "check_trust", "free_socket", "is_loopback", "key_and_certificate"]

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_trust(host: str, token: str | None, cert: object, key: object) -> None:
    """Refuse to let strangers in, and warn of what they could overhear.

    Raises:
        UsageError: an address that others can reach without a token, or a half of the TLS files.
    """
    if (cert is None) != (key is None):
        raise UsageError("TLS needs both files: the certificate (tls_cert) and its key (tls_key).")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise UsageError("The token must be printable ASCII characters without spaces.")
    if not is_loopback(host) and token is None:
        raise UsageError(
            f"Listening on {host} lets other machines stream to and read from this server: "
            "give it a token (--token or TENSORTAP_TOKEN), or stay on 127.0.0.1 and use an SSH tunnel."
        )
    if not is_loopback(host) and cert is None:
        log.warning("Listening on %s without TLS: the token and all tensors travel unencrypted.", host)


def key_and_certificate(key: str | Path, cert: str | Path) -> tuple[bytes, bytes]:
    """The contents of both files, if they belong together; what gRPC says about others explains nothing."""
    contents = Path(key).read_bytes(), Path(cert).read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise UsageError(
            f"{cert} and {key} are no certificate and its key: {error.reason or error}."
        ) from error
    return contents


def bracketed(host: str) -> str:
    """A host as it stands before a port.

    >>> bracketed("::1"), bracketed("localhost")
    ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host else host


def free_socket(host: str, port: int) -> socket.socket:
    """A listening socket; the error names the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except OverflowError:
        made.close()
        raise UsageError(f"{port} is no port; they go from 1 to 65535, and 0 takes a free one.") from None
    except OSError as error:
        made.close()
        hint = " Is another server running?" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"Port {port} of {host} cannot be used: {error.strerror}.{hint}") from error
    return made
