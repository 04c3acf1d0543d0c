"""compose.yaml and what it mounts are valid, reach no further than loopback, and keep what is acknowledged."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from outlive.infra.embedded import binaries

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> Any:
    yaml = pytest.importorskip("yaml", reason="needs a reader of YAML")
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_both_servers_can_be_replaced_checked_and_kept(compose: Any) -> None:
    assert set(compose["services"]) == {"nats", "postgres"}
    for name, service in compose["services"].items():
        assert service["image"].startswith(f"${{OUTLIVE_{name.upper()}_IMAGE:-{name}:"), "overridable and pinned"
        assert not service["image"].endswith("latest}")
        assert service["healthcheck"]["test"][0] == "CMD"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert any(volume.startswith(f"{name}:/") for volume in service["volumes"])
        assert name in compose["volumes"]


def test_what_it_mounts_exists(compose: Any) -> None:
    mounted = [volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]]
    files = [ROOT / source for source in mounted if source.startswith(".")]
    assert files == [ROOT / "infra/nats.conf"]
    assert files[0].is_file()


def test_nats_accepts_its_configuration_and_syncs_each_message() -> None:
    config = ROOT / "infra/nats.conf"
    checked = subprocess.run(
        [binaries.nats_server(), "-t", "-c", config],
        env={"OUTLIVE_NATS_TOKEN": "token"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "sync_interval: always" in config.read_text()


def test_the_container_stage_is_sound_shell() -> None:
    script = ROOT / ".ci/containers"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_the_container_stage_says_why_it_skips(tmp_path: Path) -> None:
    # A PATH with a shell and little else: no docker.
    for name in ("bash", "env", "dirname", "mktemp", "rm"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        [ROOT / ".ci/containers"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "skipped: no docker here\n"), done.stderr
