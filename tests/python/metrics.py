"""Parses metrics with the library of Prometheus, and prints them as JSON.

The output is a list of [name, type, help, [[sample, labels, value], ...]].
"""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]] for f in families]))
