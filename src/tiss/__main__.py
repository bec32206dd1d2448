"""`python -m tiss`, for torchrun and accelerate launch."""

from tiss.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
