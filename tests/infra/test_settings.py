"""Settings: from the environment, checked, with an error that names the variable."""

from pathlib import Path

import pytest

from outlive.infra.settings import InvalidSetting, Settings, default_cache_dir


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTLIVE_LEASE", "6.5")
    monkeypatch.setenv("OUTLIVE_SLOTS", "12")
    monkeypatch.setenv("OUTLIVE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("OUTLIVE_TENANT", "")  # set to nothing is not set
    settings = Settings.load(slots=7, prefix=None)
    assert (settings.lease, settings.slots, settings.state_dir) == (6.5, 7, tmp_path)
    assert (settings.tenant, settings.prefix) == ("default", "outlive")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OUTLIVE_LEASE", "soon", r"OUTLIVE_LEASE='soon' cannot be used: Expected `float`"),
        ("OUTLIVE_LEASE", "-1", r"OUTLIVE_LEASE='-1' cannot be used: .*> 0"),
        ("OUTLIVE_SLOTS", "0", r"OUTLIVE_SLOTS='0' cannot be used: .*>= 1"),
        ("OUTLIVE_PREFIX", "a.b", r"OUTLIVE_PREFIX='a\.b' cannot be used"),
        ("OUTLIVE_TENANT", "no spaces", r"OUTLIVE_TENANT: tenant 'no spaces' is not allowed: 1 to 32 characters"),
        ("OUTLIVE_HEARTBEAT", "5", r"OUTLIVE_HEARTBEAT=5: at least three heartbeats must fit into OUTLIVE_LEASE=10"),
    ],
)
def test_a_bad_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSetting, match=message):
        Settings.load()


def test_an_override_that_is_no_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="no such setting: leese"):
        Settings.load(leese=3)


def test_the_state_folder_is_here_if_it_exists_else_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Settings.load().state_dir == tmp_path / "data" / "outlive"
    (tmp_path / ".outlive").mkdir()
    assert Settings.load().state_dir == tmp_path / ".outlive"


def test_the_cache_of_root_is_one_that_others_can_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_cache_dir() == Path("/var/cache/outlive")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "outlive"
