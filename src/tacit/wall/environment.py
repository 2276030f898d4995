"""Settings of JAX and XLA under which the wall does not run: other arithmetic, and programs written to files.

XLA reads its flags once, when it compiles for the first time, so both the variables and what XLA made of them are
looked at. The persistent compilation cache is let be: a compiled program holds no record, only the number of them.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
from jaxlib import xla_client

TELLING_FLAGS = ("dump", "snapshot", "buffer_debug", "log_minmax")
"""Parts of the names of XLA's flags that write programs, or what they are given, to a file or a log."""
DUMPS = ("to", "hlo_snapshots", *(f"hlo_as_{form}" for form in ("text", "proto", "dot", "html", "url")))
"""Flags of XLA, without their prefix, of which one is set where anything is written. The form of long texts is not
among them: it is set by default."""
TELLING_SETTINGS = {
    "jax_dump_ir_to": ("", "writes every program that is compiled to a folder, with all constants in it"),
    "jax_debug_nans": (False, "raises an error where a number is not finite: the records decide whether it comes"),
    "jax_debug_infs": (False, "raises an error where a number is not finite: the records decide whether it comes"),
    "jax_disable_jit": (False, "runs functions on the records themselves, where a print or a debugger sees them"),
    **{
        f"jax_error_checking_behavior_{kind}": ("ignore", "raises an error that the records decide on")
        for kind in ("nan", "divide", "oob")
    },
}
"""Settings of JAX, the value under which nothing is reported, and what any other value does."""
LOGS = ("TF_CPP_MAX_VLOG_LEVEL", "TF_CPP_VMODULE")
"""Variables that make XLA log what it compiles."""


def check_environment() -> None:
    """Refuse settings under which the wall's proofs do not hold, or which write programs and their arguments to files.

    Privacy: public.
    """
    if jax.config.read("jax_enable_x64"):
        raise ValueError(
            "JAX is in 64-bit mode, for which the integer arithmetic of the wall was not written. "
            "Switch it off: jax.config.update('jax_enable_x64', False)."
        )
    _check_flags(os.environ.get("XLA_FLAGS", "").split())
    _check_flags(os.environ.get("TF_XLA_FLAGS", "").split(), "TF_XLA_FLAGS")
    in_force = _in_force()
    if in_force:
        raise ValueError(
            f"XLA was started with --{in_force[0]}: it writes programs to files, and they can hold records and the "
            "secret key. Start the process anew without this flag; XLA reads its flags only once."
        )
    for variable in LOGS:
        if os.environ.get(variable, "").strip() not in ("", "0"):
            raise ValueError(
                f"The variable {variable} makes XLA log what it compiles and computes, which can hold numbers of "
                "records. Remove it, and start the process anew."
            )
    settings = jax.config.values
    for name, (silent, does) in TELLING_SETTINGS.items():
        if settings.get(name, silent) != silent:
            raise ValueError(f"{name} is set, which {does}. Write jax.config.update({name!r}, {silent!r}).")


def _check_flags(flags: list[str], variable: str = "XLA_FLAGS") -> None:
    """Refuse flags by their names; what a file of flags holds is not known when XLA reads it."""
    if flags and (not flags[0].startswith("-") or any("flagfile" in _name(flag) for flag in flags)):
        raise ValueError(
            f"{variable} names a file of flags, which may switch on fast math, or dumps that hold records. Write the "
            f"flags themselves into {variable}, and start the process anew."
        )
    for flag in flags:
        name = _name(flag)
        if "enable_fast_math" in name and not flag.endswith(("=false", "=0")):
            raise ValueError(
                f"{variable} switches on fast math, under which NaN and rounding behave otherwise than the wall's "
                "proofs assume. Remove it."
            )
        if any(part in name for part in TELLING_FLAGS):
            raise ValueError(
                f"{variable} holds {name}: XLA then writes programs to files, and they can hold records and the "
                "secret key. Remove it, and start the process anew; XLA reads its flags only once."
            )


def _name(flag: str) -> str:
    return flag.partition("=")[0]


@functools.cache
def _in_force() -> list[str]:
    """List the flags that write programs to files and that XLA was started with; nothing where it does not tell."""
    # The parts are held by names: what an earlier one owns is freed with it.
    options = xla_client.CompileOptions()
    build: Any = getattr(options, "executable_build_options", None)
    debug: Any = getattr(build, "debug_options", None)
    return [f"xla_dump_{name}" for name in DUMPS if getattr(debug, f"xla_dump_{name}", None)]
