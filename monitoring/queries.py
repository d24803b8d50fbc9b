#!/usr/bin/env python3
"""Prints every query of the dashboards, one a line, with examples in place of their variables."""

import json
import re
from pathlib import Path

EXAMPLES = {"$__rate_interval": "5m", "$job": "duramen"}


def main():
    for path in sorted((Path(__file__).parent / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"]
                for variable, example in EXAMPLES.items():
                    text = text.replace(variable, example)
                print(re.sub(r"\$\w+", ".*", text))


if __name__ == "__main__":
    main()
