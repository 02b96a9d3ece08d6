"""certificates.py: certificates for servers of tests, made with the program openssl: a separate authority, and
certificates that a client must refuse."""

import pathlib
import ssl
import subprocess

NAMES = "IP:127.0.0.1,IP:127.0.0.2"
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]


def openssl(*words):
    subprocess.run(["openssl", "req", "-x509", *KEY, *map(str, words)], check=True, capture_output=True)


class Certificates:
    """Files of a folder. `ca`: the authority that a client must trust. `good`: for 127.0.0.1 and 127.0.0.2.
    `wrong_name`: of this authority for another host. `stranger`: for the right hosts, of an untrusted authority."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca = self.authority("ca")
        self.good = self.leaf("good", self.ca, NAMES)
        self.wrong_name = self.leaf("wrong_name", self.ca, "DNS:other.invalid")
        self.stranger = self.leaf("stranger", self.authority("other"), NAMES)

    def pair(self, name):
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def authority(self, name):
        certificate, key = self.pair(name)
        openssl(
            "-subj",
            f"/CN=Authority {name} of the tests",
            "-keyout",
            key,
            "-out",
            certificate,
            "-addext",
            "keyUsage=critical,keyCertSign",
        )
        return certificate, key

    def leaf(self, name, authority, names):
        certificate, key = self.pair(name)
        openssl(
            "-subj",
            f"/CN={name}",
            "-keyout",
            key,
            "-out",
            certificate,
            "-CA",
            authority[0],
            "-CAkey",
            authority[1],
            "-addext",
            f"subjectAltName={names}",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        )
        return certificate, key

    def context(self, which="good"):
        """Returns a server's TLS context with one of the certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*getattr(self, which))
        return context

    def environment(self):
        """Returns variables by which OpenSSL, curl and Python find the authority."""
        return dict.fromkeys(("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"), str(self.ca[0]))
