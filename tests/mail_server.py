"""A mail server on this machine, with or without STARTTLS (RFC 5321, RFC 3207): what mails it takes, and what a client is told.

It has no login; a mail is what came between DATA and the final dot.
"""

import datetime
import socketserver
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from pathlib import Path
from threading import Thread
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class MailServer:
    port: int
    mails: list[Message] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    """Of each mail, whether it came by TLS."""


@contextmanager
def mail_server(certificate: Path | None = None) -> Iterator[MailServer]:
    """A server for the block; with a `self_signed` certificate and key it offers STARTTLS, and takes no mail without."""

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            is_encrypted = False
            self.say(220, "ready")
            while line := self.rfile.readline():
                verb, _, argument = line.decode().strip().partition(" ")
                match verb.upper():
                    case "EHLO" if certificate and not is_encrypted:
                        self.wfile.write(b"250-here\r\n250 STARTTLS\r\n")
                    case "STARTTLS" if certificate:
                        self.say(220, "go ahead")
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(certificate)
                        self.connection: Any = context.wrap_socket(self.request, server_side=True)
                        self.rfile, self.wfile = (
                            self.connection.makefile("rb"),
                            self.connection.makefile("wb", 0),
                        )
                        is_encrypted = True
                    case "MAIL" if certificate and not is_encrypted:
                        self.say(530, "Must issue a STARTTLS command first")
                    case "DATA":
                        self.say(354, "end with a dot")
                        content = b""
                        while (line := self.rfile.readline()) != b".\r\n":
                            content += line.removeprefix(b".") if line.startswith(b"..") else line
                        server.mails.append(message_from_bytes(content, policy=default))
                        server.encrypted.append(is_encrypted)
                        self.say(250, "taken")
                    case "QUIT":
                        self.say(221, "bye")
                        return
                    case "EHLO" | "HELO" | "MAIL" | "RCPT" | "RSET" | "NOOP":
                        if verb.upper() == "RCPT":
                            server.recipients.append(argument.partition("<")[2].partition(">")[0])
                        self.say(250, "fine")
                    case _:
                        self.say(502, "not here")

        def say(self, code: int, text: str) -> None:
            self.wfile.write(f"{code} {text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as listening:
        listening.daemon_threads = True
        server = MailServer(listening.server_address[1])
        Thread(target=listening.serve_forever, daemon=True).start()
        yield server
        listening.shutdown()


def self_signed(folder: Path) -> Path:
    """A file with a key and a certificate for localhost that nobody else has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "localhost.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
