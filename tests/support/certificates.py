"""Certificates for tests of TLS, made by the `openssl` command."""

import dataclasses
import pathlib
import shutil
import subprocess

import pytest


@dataclasses.dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, what it has signed, and a certificate of somebody else."""

    authority: str
    server: str
    server_key: str
    client: str
    client_key: str
    stranger: str
    stranger_key: str


def make_certificates(directory: pathlib.Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("the `openssl` command is missing")

    def run(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=directory, check=True, capture_output=True)

    def make_root(name: str) -> None:
        run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"),
            *("-subj", f"/CN={name}"),
        )

    make_root("authority")
    make_root("stranger")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem"),
            *("-CAkey", "authority.key", "-CAcreateserial", "-days", "2"),
            *("-out", f"{name}.pem", "-extfile", "names"),
        )
    names = ("authority", "server", "client", "stranger")
    paths = {name: str(directory / f"{name}.pem") for name in names}
    keys = {f"{name}_key": str(directory / f"{name}.key") for name in names[1:]}
    return Certificates(**paths, **keys)
