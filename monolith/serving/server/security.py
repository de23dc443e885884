"""Certificates and tokens.

Example:
    >>> tokens = Tokens([b"secret"])
    >>> tokens.is_allowed("Bearer secret"), tokens.is_allowed("Bearer other")
    (True, False)
"""

import hmac
import ssl
from collections.abc import Sequence

import grpc

from monolith import errors
from monolith.serving.server.config import Security

# gRPC wants names of metadata in lower case, and HTTP does not mind.
HEADER = "authorization"
_SCHEME = "bearer "


class Tokens:
    """The tokens of which a client must send one.

    Args:
        tokens: The tokens; none: everybody is allowed.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = list(tokens)

    @property
    def is_required(self) -> bool:
        """Whether a client must send one."""
        return bool(self._tokens)

    def is_allowed(self, header: str | None) -> bool:
        """Returns whether the value of the header `authorization` gives access."""
        if not self._tokens:
            return True
        header = header or ""
        if not header.lower().startswith(_SCHEME):
            return False
        given = header[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape")
        # In constant time, which tells nothing about how far two tokens are alike.
        return any(hmac.compare_digest(given, token) for token in self._tokens)


def read_tokens(config: Security) -> Tokens:
    """Reads the tokens.

    Raises:
        errors.ConfigError: The file cannot be read, or there is no token in it.
    """
    if config.token_file is None:
        return Tokens([])
    lines = _read(config.token_file, "token file").splitlines()
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens:
        raise errors.ConfigError(
            f"The token file {config.token_file} is empty; write a token into it, one in a line."
        )
    return Tokens(tokens)


def make_grpc_credentials(config: Security) -> grpc.ServerCredentials | None:
    """Returns what gRPC listens with, None without TLS.

    Raises:
        errors.ConfigError: A file cannot be read.
    """
    if config.certificate is None or config.key is None:
        return None
    make_ssl_context(config)  # gRPC would not say what is wrong with the files.
    authority = None
    if config.client_authority is not None:
        authority = _read(config.client_authority, "client authority")
    pair = (_read(config.key, "key"), _read(config.certificate, "certificate"))
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority, require_client_auth=authority is not None
    )


def make_ssl_context(config: Security) -> ssl.SSLContext | None:
    """Returns what HTTP listens with, None without TLS.

    Raises:
        errors.ConfigError: A file cannot be read, or does not hold what it should.
    """
    if config.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as e:
        raise errors.ConfigError(
            f"The certificate {config.certificate} and the key {config.key} cannot be used: {e}."
        ) from e
    if config.client_authority is not None:
        try:
            context.load_verify_locations(config.client_authority)
        except (OSError, ssl.SSLError) as e:
            raise errors.ConfigError(
                f"The client authority {config.client_authority} cannot be used: {e}."
            ) from e
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as e:
        raise errors.ConfigError(f"The {what} {path} cannot be read: {e}.") from e
