from outlive.actors.agents.brakes import Brakes
from outlive.actors.agents.context import Done
from outlive.actors.agents.decisions import Call


def _call(brakes: Brakes, path: str, *, ok: bool, text: str = "no") -> None:
    brakes.decided()
    brakes.called(Call(tool="look", arguments={"path": path}), Done("1", f"look({path})", "look", ok=ok, text=text))


def test_the_same_failing_call_stops_the_agent() -> None:
    brakes = Brakes(failures=3, idle=100)
    for _ in range(2):
        _call(brakes, "a", ok=False)
        _call(brakes, "b", ok=True)
    assert brakes.evidence is None

    _call(brakes, "a", ok=False, text="permission denied")

    assert brakes.evidence == "It repeats a call that fails. look(a) failed 3 times: permission denied"


def test_a_success_in_between_lets_go() -> None:
    brakes = Brakes(failures=2, idle=100)
    for ok in (False, True, False):
        _call(brakes, "a", ok=ok)

    assert brakes.evidence is None


def test_decisions_without_anything_new_stop_the_agent() -> None:
    brakes = Brakes(failures=100, idle=3)
    _call(brakes, "a", ok=True)
    for _ in range(3):
        _call(brakes, "a", ok=True)

    assert brakes.evidence is not None
    assert "Its last 3 decisions led to nothing new" in brakes.evidence


def test_a_person_lets_go() -> None:
    brakes = Brakes(failures=2, idle=2)
    for _ in range(3):
        _call(brakes, "a", ok=False)
    assert brakes.evidence is not None

    brakes.release()

    assert brakes.evidence is None
