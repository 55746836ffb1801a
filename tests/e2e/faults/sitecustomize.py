"""A fault for the cluster of the end-to-end tests: its routing policy raises for one size of request.

Python imports a module of this name at start-up when it lies on PYTHONPATH. The policy's module is changed when a
process imports it, and not before.
"""

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any

TARGET = "router.policies.expected_finish"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_then_break(module: Any) -> None:
            run(module)
            _break(module.ExpectedFinishPolicy)

        spec.loader.exec_module = run_then_break  # type: ignore[method-assign]
        return spec


def _break(policy: Any) -> None:
    choose = policy.choose
    fatal = tuple(int(number) for number in os.environ["FATAL_REQUEST"].split())

    def choose_or_raise(self: Any, request: Any, *args: Any) -> Any:
        if (request.num_tokens, request.max_new_tokens) == fatal:
            raise RuntimeError("a fault that a test asked for")
        return choose(self, request, *args)

    policy.choose = choose_or_raise


sys.meta_path.insert(0, _Finder())
