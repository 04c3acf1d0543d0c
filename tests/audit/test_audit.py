"""The audit's facts, on a made-up site-packages folder with planted findings."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from outlive.actors.audit import licences, packages, reports
from outlive.actors.audit.findings import Finding, FindingKind
from outlive.actors.audit.inspection import inspect
from outlive.actors.audit.licences import Copyleft
from tests.audit.made_up import SitePackages

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files, to deal in the Software without restriction.
The above copyright notice and this permission notice shall be included in all copies."""
GPL = """                    GNU GENERAL PUBLIC LICENSE
                       Version 3, 29 June 2007
 Everyone is permitted to copy and distribute verbatim copies of this license document."""
BSD_2 = """Redistribution and use in source and binary forms, with or without modification, are permitted:
* Redistributions of source code must retain the above copyright notice.
* Redistributions in binary form must reproduce the above copyright notice."""
BSD_3 = f"{BSD_2}\nThe name of the author may not be used to endorse or promote products."
MPL = "Mozilla Public License Version 2.0\n==========\n1.13. means the GNU General Public License, Version 2.0"


def classifiers(*names: str) -> str:
    """Metadata headers for licence classifiers."""
    return "".join(f"Classifier: License :: OSI Approved :: {name}\n" for name in names)


def kinds(findings: list[Finding]) -> list[FindingKind]:
    """The kinds of findings, in order."""
    return [finding.kind for finding in findings]


@pytest.fixture
def site(tmp_path: Path) -> SitePackages:
    """An empty site-packages folder."""
    return SitePackages(tmp_path)


def test_an_honest_package_has_no_finding(site: SitePackages) -> None:
    found = inspect(site.add("good", "License-Expression: MIT\n", texts=(MIT,)))
    assert found.findings == []
    assert (found.expression, found.source, found.texts, found.verified) == ("MIT", "expression", ["MIT"], True)
    assert found.files == 4


def test_missing_and_altered_files_are_grouped_by_package(site: SitePackages) -> None:
    package = site.add("broken", "License-Expression: MIT\n", texts=(MIT, MIT))
    site.write("broken/__init__.py", b"import os\n")
    for n in (0, 1):
        (site.folder / f"broken-1.0.dist-info/licenses/LICENSE-{n}").unlink()
    missing, altered = inspect(package).findings
    assert missing.kind == FindingKind.MISSING
    assert missing.summary.startswith("2 files of RECORD are missing")
    assert missing.details == [f"broken-1.0.dist-info/licenses/LICENSE-{n}" for n in (0, 1)]
    assert (altered.kind, altered.details) == (FindingKind.ALTERED, ["broken/__init__.py"])


def test_gpl_text_under_an_mit_classifier_is_a_conflict(site: SitePackages) -> None:
    (finding,) = inspect(site.add("sly", classifiers("MIT License"), texts=(GPL,))).findings
    assert finding.kind == FindingKind.CONFLICT
    assert finding.summary == "it declares MIT, its licence text is GPL-3.0"


def test_gpl_text_beside_an_mit_text_is_a_conflict_too(site: SitePackages) -> None:
    (finding,) = inspect(site.add("sly", "License: MIT\n", texts=(MIT, GPL))).findings
    assert finding.summary == "it declares MIT, and carries the copyleft text of GPL-3.0"


def test_field_and_classifiers_that_disagree_are_a_conflict(site: SitePackages) -> None:
    found = inspect(site.add("two", f"License: MIT\n{classifiers('Apache Software License')}"))
    assert [finding.summary for finding in found.findings] == ["it declares MIT, its classifiers say Apache"]


def test_two_classifiers_alone_leave_open_what_applies(site: SitePackages) -> None:
    names = ("MIT License", "GNU General Public License v3 or later (GPLv3+)")
    found = inspect(site.add("both", classifiers(*names), texts=(MIT, GPL)))
    assert found.expression == "GPL-3.0-or-later AND MIT"
    assert kinds(found.findings) == [FindingKind.COPYLEFT, FindingKind.CONFLICT]
    assert found.findings[0].summary == "strong copyleft: GPL-3.0-or-later AND MIT"


def test_weak_copyleft_is_called_weak(site: SitePackages) -> None:
    (finding,) = inspect(site.add("moz", "License: MPL-2.0\n", texts=(MPL,))).findings
    assert finding.summary == "weak copyleft: MPL-2.0"


def test_copyleft_of_bundled_code_is_told_with_its_place(site: SitePackages) -> None:
    package = site.add("kit", "License-Expression: MIT\n", texts=(MIT,))
    for path in ("kit/vendor/a/LICENSE.txt", "kit/vendor/b/COPYING", "kit/licence_names.py"):
        site.write(path, MPL.encode())
    record = site.folder / "kit-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}\nkit/vendor/a/LICENSE.txt,,\nkit/vendor/b/COPYING,,\n")
    (finding,) = inspect(package).findings
    assert (finding.kind, finding.summary) == (FindingKind.COPYLEFT, "weak copyleft in bundled code: MPL-2.0")
    assert finding.details == ["kit/vendor/a/LICENSE.txt", "kit/vendor/b/COPYING"]


def test_a_package_that_says_nothing_is_unknown(site: SitePackages) -> None:
    found = inspect(site.add("silent"))
    assert (found.expression, found.source) == (None, "none")
    assert kinds(found.findings) == [FindingKind.UNKNOWN]
    (odd,) = inspect(site.add("odd", "License: see the web site\n")).findings
    assert "'see the web site'" in odd.summary


def test_a_family_is_made_exact_by_the_text(site: SitePackages) -> None:
    found = inspect(site.add("bsd", classifiers("BSD License"), texts=(BSD_2,)))
    assert (found.expression, found.source, found.findings) == ("BSD-2-Clause", "classifiers", [])
    assert kinds(inspect(site.add("vague", classifiers("BSD License"))).findings) == [FindingKind.UNKNOWN]
    conflict = inspect(site.add("claims3", "License-Expression: BSD-3-Clause\n", texts=(BSD_2,))).findings
    assert kinds(conflict) == [FindingKind.CONFLICT]


def test_the_text_alone_decides_when_nothing_is_declared(site: SitePackages) -> None:
    found = inspect(site.add("bare", texts=(BSD_3,)))
    assert (found.expression, found.source, found.findings) == ("BSD-3-Clause", "text", [])


def test_metadata_that_is_no_utf8_and_odd_paths_do_not_stop_the_audit(site: SitePackages) -> None:
    package = site.add("odd", "License-Expression: MIT\n")
    site.write("odd-1.0.dist-info/METADATA", b"Name: odd\nVersion: 1.0\nAuthor: Jos\xe9\nLicense-Expression: MIT\n")
    record = site.folder / "odd-1.0.dist-info/RECORD"
    record.write_bytes(b"caf\xe9.py,sha256=xx,1\nodd,sha256=yy,1\n/nowhere/at/all,md9=zz,1\n\n")
    (finding,) = inspect(package).findings
    assert finding.kind == FindingKind.MISSING
    assert finding.details == ["/nowhere/at/all", "caf\\udce9.py", "odd"]
    msgspec.json.encode(finding)


def test_a_package_without_record_is_read_and_called_unverified(site: SitePackages) -> None:
    site.write("old-2.0.egg-info/PKG-INFO", b"Name: Old\nVersion: 2.0\nLicense: MIT\n")
    package = packages.installed(str(site.folder))[0]
    assert (package.name, package.version) == ("Old", "2.0")
    found = inspect(package)
    assert (found.expression, found.verified, found.files) == ("MIT", False, 1)


def test_few_distributions_bring_the_standard_library(site: SitePackages) -> None:
    site.add("zed")
    site.add("Abc")
    (site.folder / "zed-0.9.dist-info").mkdir()
    found = packages.installed(str(site.folder))
    assert [package.name for package in found if package.installed] == ["Abc", "zed"]
    library = [package for package in found if not package.installed]
    assert "asyncio" in [package.name for package in library]
    inspected = inspect(library[0])
    assert (inspected.expression, inspected.findings, inspected.verified) == ("PSF-2.0", [], False)
    assert inspected.files > 0


def test_a_path_that_is_no_folder_is_refused() -> None:
    with pytest.raises(NotADirectoryError, match="give a site-packages folder"):
        packages.installed("/no/such/folder")


def test_an_inspection_of_the_same_files_is_the_same(site: SitePackages) -> None:
    package = site.add("good", "License-Expression: MIT\n")
    first = inspect(package)
    site.write("good/__pycache__/__init__.cpython-311.pyc", b"a cache that came later")
    second = inspect(package)
    assert first.digest == second.digest
    site.write("good/__init__.py", b"y = 2\n")
    assert inspect(package).digest != first.digest


@pytest.mark.parametrize(
    ("expression", "strength"),
    [
        ("MIT", Copyleft.NONE),
        ("MPL-2.0", Copyleft.WEAK),
        ("LGPL-2.1-or-later", Copyleft.WEAK),
        ("LGPL", Copyleft.WEAK),
        ("GPL-3.0-only", Copyleft.STRONG),
        ("AGPL-3.0-or-later", Copyleft.STRONG),
        ("MIT OR GPL-2.0-only", Copyleft.NONE),
        ("MIT AND GPL-2.0-only", Copyleft.STRONG),
        ("GPL-2.0-only WITH Classpath-exception-2.0", Copyleft.WEAK),
        ("(MIT OR GPL-2.0-only) AND MPL-2.0", Copyleft.WEAK),
        ("BSD", Copyleft.NONE),
        ("((", Copyleft.NONE),
    ],
)
def test_copyleft_of_an_expression(expression: str, strength: Copyleft) -> None:
    assert licences.copyleft(expression) == strength


@pytest.mark.parametrize(
    ("name", "licence"),
    [
        ("MIT License", "MIT"),
        ("The  MIT\nLicense", "MIT"),
        ("Apache 2.0", "Apache-2.0"),
        ("BSD", "BSD"),
        ("apache-2.0 or bsd-2-clause", "Apache-2.0 OR BSD-2-Clause"),
        ("GNU General Public License (GPL)", "GPL-1.0-or-later"),
        ("Proprietary, ask us", None),
        ("", None),
    ],
)
def test_names_as_people_write_them(name: str, licence: str | None) -> None:
    assert licences.named(name) == licence


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ("BSD", "BSD-3-Clause", True),
        ("BSD-2-Clause", "BSD-3-Clause", False),
        ("GPL-2.0-or-later", "GPL-3.0", True),
        ("GPL-3.0", "GPL-2.0-or-later", True),
        ("GPL-2.0-only", "GPL-3.0", False),
        ("LGPL-3.0", "GPL-3.0", False),
        ("Python-2.0", "PSF-2.0", True),
    ],
)
def test_which_licences_can_be_the_same(one: str, other: str, *, fits: bool) -> None:
    assert licences.same(one, other) is fits


def test_texts_are_recognised_whatever_their_layout() -> None:
    assert licences.of_text(f"# {MIT.upper()}") == ["MIT"]
    assert licences.of_text(MPL) == ["MPL-2.0"]
    assert licences.of_text(f"{BSD_3}\n\n{MIT}") == ["BSD-3-Clause", "MIT"]
    assert licences.of_text("All rights reserved.") == []


def test_reports_are_the_same_when_written_twice(site: SitePackages, tmp_path: Path) -> None:
    site.add("good", "License-Expression: MIT\n", texts=(MIT,))
    site.add("silent|x<y>")
    inspections = [inspect(package) for package in packages.installed(str(site.folder)) if package.installed]
    report = reports.Report(serial=UUID(int=7), at=datetime(2030, 1, 2, tzinfo=UTC), inspections=inspections)
    folder = tmp_path / "reports"
    paths = [Path(path) for path in reports.write(report, str(folder))]
    first = [path.read_bytes() for path in paths]
    reports.write(report, str(folder))
    assert [path.read_bytes() for path in paths] == first
    assert sorted(path.name for path in folder.iterdir()) == sorted(reports.NAMES)
    bom, text, everything = first
    names = [component["name"] for component in msgspec.json.decode(bom)["components"]]
    assert sorted(names) == ["good", "silent|x<y>"]
    assert b"1 finding: 1 unknown." in text
    assert b"silent\\|x&lt;y>" in text
    assert msgspec.json.decode(everything, type=reports.Report) == report
