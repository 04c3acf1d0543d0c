"""How far the step is that has an action's name."""

from outlive.protocol.identity import stands


def test_how_far_the_one_is_that_has_the_name() -> None:
    assert stands("running", None, None) == "under_way"
    assert stands("running", "failed", None) == "under_way"  # it may try again
    assert stands("paused", "awaiting_approval", None) == "under_way"
    assert stands("paused", "unknown", None) == "under_way"
    assert stands("succeeded", "succeeded", "completed") == "happened"
    assert stands("running", "succeeded", "failed") == "unknown"  # its result is lost
    assert stands("running", "unknown", "failed") == "unknown"
    assert stands("cancelled", "started", None) == "unknown"
    assert stands("cancelled", "awaiting_approval", None) == "free"
    assert stands("running", "failed", "failed") == "free"
    assert stands("failed", None, None) == "free"
    assert stands("cancelled", "succeeded", "completed", undo="succeeded", undoing=True) == "free"
    assert stands("running", "succeeded", "completed", undoing=True) == "under_way"  # it is about to be undone
    assert stands("cancelled", "succeeded", "completed", undo="unknown", undoing=True) == "unknown"
    assert stands("cancelled", "succeeded", "completed", undo="failed", undoing=True) == "happened"
    assert stands("cancelled", "succeeded", "completed", undoing=True) == "happened"  # nothing undoes it
