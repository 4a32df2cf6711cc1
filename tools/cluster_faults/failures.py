"""Why a round has failed."""


class Broken(Exception):
    """A promise that was not kept."""


class Hung(Exception):
    """Somebody did not come to an end in time."""
