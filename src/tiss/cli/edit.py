"""Commands that change a model without images: `tiss forget` and `tiss merge`."""

from dataclasses import dataclass

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class ForgetOptions:
    model: str = setting(REQUIRED, "a model of analytic or lda", positional=True)
    classes: str = setting(REQUIRED, "the classes to remove, with commas")
    out: str = setting(REQUIRED, "the model folder to write; it must not exist")


def forget(options: ForgetOptions) -> int:
    """Removes classes from a model whose head was solved (--method analytic or lda, the default of `tiss train` with a
    pretrained encoder). MODEL stays as it is. No image is needed, and it takes seconds: the sums of the other classes
    stay, and the patches of a removed class count as background. So the result is the model that never had the class,
    except that these patches are background for certain, where that model would share them out among its classes.

    Examples:
      tiss forget second --classes forklift --out without
    """
    from tiss.user import edit

    print(edit.forget(options.model, options.classes, options.out))
    print(f"model: {options.out}")
    return 0


@dataclass(frozen=True)
class MergeOptions:
    one: str = setting(REQUIRED, "a model of analytic or lda", positional=True)
    two: str = setting(REQUIRED, "another one, made from the same base", positional=True)
    out: str = setting(REQUIRED, "the model folder to write; it must not exist")
    base: str | None = setting(None, "the model that both were made from (None: as their folders record it)")


def merge(options: MergeOptions) -> int:
    """Two people taught different classes to the same base model: makes the model that knows both. No image is needed,
    and it takes seconds. The result equals teaching both, one after the other in either order, up to rounding (and the
    order of the classes). Needs models whose head was solved (--method analytic or lda).

    Examples:
      tiss merge with-forklift with-pallet --out with-both
      tiss merge hers his --base first --out with-both
    """
    from tiss.user import edit

    print(edit.merge(options.one, options.two, options.out, options.base))
    print(f"model: {options.out}")
    return 0
