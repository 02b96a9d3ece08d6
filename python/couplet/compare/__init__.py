"""Runs side by side: settings that differ, figures at equal tokens and equal time, groups over seeds, and pairs of runs that
saw the same data in the same order (docs/compare.md).

    python -m couplet.compare RUN [RUN ...]

It reads the folders of runs and needs numpy. `couplet compare` starts it."""
