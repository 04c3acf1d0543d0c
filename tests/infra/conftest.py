import pytest

from tests.infra.attention import Attention


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Attention:
    """What the readers of this test do."""
    return Attention(monkeypatch)
