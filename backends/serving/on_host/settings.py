"""What a machine is to be made into; read from standard input or the file kept from last time."""

from __future__ import annotations

from typing import Any

from .system import Json

STEPS = (
    "data_disk",
    "swap",
    "space",
    "headers",
    "driver",
    "python",
    "vllm",
    "cuda",
    "clamp",
    "docker",
    "image",
    "unit",
)
"""All steps, in the order they are taken."""

GPU_STEPS = tuple(step for step in STEPS if step not in {"docker", "image"})
"""Steps of a machine that serves from Python packages on an NVIDIA GPU."""


class Settings:
    """Settings of a preparation; a field that is not given has its default.

    Args:
        given: Fields by name.

    Raises:
        ValueError: A field is unknown.
    """

    def __init__(self, given: Json) -> None:
        self.steps: list[str] = list(GPU_STEPS)
        # The data disk by its stable name, e.g. /dev/disk/by-id/google-NAME; none: the boot disk.
        self.data_device: str | None = None
        self.data_folder = "/mnt/data"
        # Mount and swap at boot by themselves; otherwise every start brings them back.
        self.fstab = False
        # 7.8 GB of memory do not hold 10.2 GB of weights while they load (GCE T4 article).
        self.swap_gib = 16
        self.data_min_gib = 25.0
        self.temp_min_gib = 8.0
        self.root_min_gib = 2.0
        self.driver_package = "nvidia-driver"
        self.driver_repository = "https://developer.download.nvidia.com/compute/cuda/repos"
        self.may_reboot = True
        self.python = "python3"
        # 0.26 fails on Gemma 4: AmbiguousGlobalPerLayerAttributeError (GCE T4 article).
        self.vllm = "vllm>=0.27.2"
        # Of torch's CUDA wheels, where the default index would give a build without CUDA.
        self.extra_index_url = ""
        # Upgrade what satisfies the requirement already.
        self.upgrade = False
        self.clamp = True
        self.image = ""
        # Serve again by itself after a boot.
        self.unit = False
        known = set(vars(self))
        unknown = set(given) - known
        if unknown:
            raise ValueError("unknown settings: " + ", ".join(sorted(unknown)))
        for name, value in given.items():
            setattr(self, name, value)
        wrong = [step for step in self.steps if step not in STEPS]
        if wrong:
            raise ValueError("unknown steps: " + ", ".join(wrong))
        self.steps = [step for step in STEPS if step in self.steps]
        if not self.unit:
            self.steps = [step for step in self.steps if step != "unit"]
        if not self.clamp:
            self.steps = [step for step in self.steps if step != "clamp"]

    def shown(self) -> dict[str, Any]:
        """All fields."""
        return dict(vars(self))

    @property
    def swap_file(self) -> str:
        """Where the swap file is."""
        return self.data_folder + "/swapfile"

    @property
    def user_base(self) -> str:
        """Python's user base: packages are below it."""
        return self.data_folder + "/pyuser"

    @property
    def temp(self) -> str:
        """TMPDIR of installations: /tmp may be a tmpfs of half the memory."""
        return self.data_folder + "/tmp"  # noqa: S108 (our own)

    @property
    def pip_cache(self) -> str:
        """The cache of pip."""
        return self.data_folder + "/pipcache"

    @property
    def weights(self) -> str:
        """HF_HOME: weights are below it."""
        return self.data_folder + "/huggingface"

    @property
    def folders(self) -> list[str]:
        """Folders of ours on the data disk."""
        return [self.user_base, self.temp, self.pip_cache, self.weights]
