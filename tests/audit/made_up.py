"""A made-up site-packages folder."""

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from outlive.actors.audit.findings import Package


@dataclass
class SitePackages:
    """A folder of made-up distributions."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def add(self, name: str, headers: str = "", *, texts: tuple[str, ...] = ()) -> Package:
        """Install a distribution with one module, metadata, licence texts and a RECORD; return it."""
        info = f"{name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{headers}"
        contents = {f"{name}/__init__.py": b"x = 1\n", f"{info}/METADATA": metadata.encode()}
        contents |= {f"{info}/licenses/LICENSE-{n}": text.encode() for n, text in enumerate(texts)}
        for path, content in contents.items():
            self.write(path, content)
        lines = [f"{path},sha256={digest(content)},{len(content)}" for path, content in contents.items()]
        lines += [f"{info}/RECORD,,", f"{name}/__pycache__/__init__.cpython-311.pyc,,"]
        self.write(f"{info}/RECORD", "\n".join(lines).encode())
        return Package(name=name, version="1.0", where=str(self.folder / info))

    def write(self, path: str, content: bytes) -> None:
        """Write one file."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)


def digest(content: bytes) -> str:
    """The digest of a file as RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
