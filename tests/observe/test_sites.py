"""Call sites: the user's line, through any depth of this package."""

from race_kit import kernel, machine, meta

from flambeau.driver.api import Launch
from flambeau.observe import sites


def test_the_site_of_a_command_is_the_users_line():
    gpu, _ = machine()
    a = gpu.mem_alloc(0, 64)
    exe = gpu.load(Launch(kernel("fill_"), (meta((4, 4)),), ()), 0)
    gpu.launch(exe, [a], [], 1)
    gpu.launch(exe, [a], [], gpu.stream_create(0, 0))  # this line
    (race,) = gpu.detector.races
    line = test_the_site_of_a_command_is_the_users_line.__code__.co_firstlineno + 5
    assert race.second.place.endswith(f"test_sites.py:{line}")
    assert race.first.place.endswith(f"test_sites.py:{line - 1}")
    assert "# this line" in str(race)


def test_a_line_of_no_file_has_no_source():
    scope = {"caller": lambda: sites.caller()}
    exec(compile("def ask():\n    return caller()\n\nfound = ask()", "<made up>", "exec"), scope)
    assert sites.source(scope["found"]) != "" or sites.place(scope["found"]).endswith("test_sites.py:24")
