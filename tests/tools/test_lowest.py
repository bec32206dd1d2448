"""The lower bounds that make test-lowest installs."""

import tomllib

from tools.lowest import ROOT, lowest, requirements


def test_every_dependency_has_a_bound_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = lowest(project)
    stubs_and_tied = ("types-", "torch", "tiss[", "pillow<")
    for requirement in requirements(project):
        assert requirement.startswith(stubs_and_tied) or requirement.split(">=")[0].lower() in bounds


def test_the_highest_of_several_bounds_holds():
    project = {"dependencies": ["a>=1.9", "torch>=2.11"], "optional-dependencies": {"x": ["A>=1.10", "b<3"]}}
    assert lowest(project) == {"a": "1.10"}
