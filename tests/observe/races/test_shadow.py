"""`Shadow`: whose each piece of memory is."""

from flambeau.observe.accesses import Shadow


def test_a_piece_is_of_the_memory_that_its_first_byte_lies_in():
    """Not of what begins within it, later and of another kind."""
    shadow = Shadow()
    shadow.own(0, 1000, None, 1, None).host = True
    shadow.own(500, 100, None, 2, None).host = False
    assert shadow.own(400, 300, None, 3, None).host
    assert shadow.owner(450).born == 3 and shadow.owner(300).born == 1
