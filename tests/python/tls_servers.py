"""Starts HTTPS servers whose certificates are right or wrong, and a plain HTTP server, until standard input ends.

Writes ca.pem, the certificate of the issuer, into the directory of the first argument, and prints the ports as JSON.
"""

import datetime
import http.server
import json
import pathlib
import ssl
import sys
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def issuer(text):
    key = ec.generate_private_key(ec.SECP256R1())
    return text, key, certificate(text, key, (text, key), None, 0)


def certificate(subject, key, by, host, days):
    """Returns a certificate that ended or ends `days` from now, or in ten days for 0."""
    end = datetime.datetime.now(datetime.timezone.utc) + (days or 10) * DAY
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(by[0]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 20 * DAY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
    )
    if host:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    return builder.sign(by[1], hashes.SHA256())


def serve(folder, which, by, host, days):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if by:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = folder / f"{which}.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate(which, key, by, host, days).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        # the handshake belongs into the thread of the connection: a client may refuse the certificate
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main():
    folder = pathlib.Path(sys.argv[1])
    known, unknown = issuer("known"), issuer("unknown")
    (folder / "ca.pem").write_bytes(known[2].public_bytes(serialization.Encoding.PEM))
    ports = {
        "right": serve(folder, "right", known, "localhost", 0),
        "issuer": serve(folder, "issuer", unknown, "localhost", 0),
        "name": serve(folder, "name", known, "elsewhere.example", 0),
        "expired": serve(folder, "expired", known, "localhost", -1),
        "early": serve(folder, "early", known, "localhost", 30),
        "plain": serve(folder, "plain", None, None, 0),
    }
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


main()
