"""Tokens as an identity provider makes them: signed by openssl, with the key in a file beside them."""

import json
import re
import subprocess
import time
from base64 import urlsafe_b64encode

AUDIENCE, ISSUER = "logs", "https://id.example.com"


def encoded(data):
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value):
    return encoded(json.dumps(value).encode())


class Provider:
    """Signs tokens with RS256."""

    def __init__(self, directory):
        self.key = directory / "provider.pem"
        self.keys = directory / "keys.json"
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key)
        told = self._openssl("rsa", "-in", self.key, "-noout", "-modulus").decode()
        modulus = bytes.fromhex(re.fullmatch(r"Modulus=([0-9A-F]+)\s*", told)[1])
        key = {"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "n": encoded(modulus), "e": encoded(b"\1\0\1")}
        self.keys.write_text(json.dumps({"keys": [key]}))

    def token(self, user="alice", lifetime=600, kid="one", algorithm="RS256", **claims):
        """A claim that is None is left out."""
        now = int(time.time())
        told = {"sub": user, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + lifetime, "scope": "write"} | claims
        text = part({"alg": algorithm, "kid": kid}) + "." + part({name: value for name, value in told.items() if value is not None})
        return text + "." + encoded(self._openssl("dgst", "-sha256", "-sign", self.key, data=text.encode()))

    def _openssl(self, *arguments, data=None):
        return subprocess.run(["openssl", *map(str, arguments)], input=data, check=True, capture_output=True).stdout


def message(token, authorization=""):
    named = f"a={authorization}" if authorization else ""
    return f"n,{named},\1auth=Bearer {token}\1\1".encode()
