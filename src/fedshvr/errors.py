"""The one kind of error that is the user's to mend: a sentence that names the option, the value and what is valid."""


class UserError(ValueError):
    """Bad input; the command line prints it without a traceback and exits with 2."""


def check(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


class Diverged(RuntimeError):
    """A loss is not finite any more."""
