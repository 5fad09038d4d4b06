"""`tensortap completion`: completion for the shell."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "print completion for bash, zsh or fish"
DESCRIPTION = """Print a script that completes commands and options in a shell.

  eval "$(tensortap completion bash)"     in ~/.bashrc
  eval "$(tensortap completion zsh)"      in ~/.zshrc
  tensortap completion fish > ~/.config/fish/completions/tensortap.fish
"""

SHELLS = ("bash", "zsh", "fish")

_BASH = """_tensortap() {{
  local words word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  if [ "$COMP_CWORD" -eq 1 ] || [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _tensortap tensortap
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    commands = _commands()
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](commands), end="")
    return 0


def _commands() -> dict[str, tuple[str, list[argparse.Action]]]:
    """Help and options of every command, taken from the parser itself."""
    from tensortap.commands import parser_of

    parser: Any = parser_of()
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {each.dest: each.help or "" for each in subparsers._choices_actions}
    return {
        name: (helps.get(name, ""), [each for each in sub._actions if each.option_strings])
        for name, sub in subparsers.choices.items()
    }


def _bash(commands: dict[str, tuple[str, list[argparse.Action]]]) -> str:
    cases = "\n".join(
        f'      {name}) words="{" ".join(option for action in actions for option in action.option_strings)}" ;;'
        for name, (_, actions) in commands.items()
    )
    return _BASH.format(commands=" ".join(commands), cases=cases)


def _zsh(commands: dict[str, tuple[str, list[argparse.Action]]]) -> str:
    listed = "\n".join(f"    {_quoted(f'{name}:{text}')}" for name, (text, _) in commands.items())
    cases = []
    for name, (_, actions) in commands.items():
        specs = " ".join(
            _quoted(f"{option}[{_bare(action.help)}]" + ("" if action.nargs == 0 else ": :_files"))
            for action in actions
            for option in action.option_strings
        )
        cases.append(f"    {name}) _arguments {specs} '*: :_files' ;;")
    return (
        "#compdef tensortap\n_tensortap() {\n  local -a commands\n  commands=(\n"
        + listed
        + "\n  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
        + "  local name=$words[2]\n  shift words; (( CURRENT-- ))\n  case $name in\n"
        + "\n".join(cases)
        + "\n  esac\n}\ncompdef _tensortap tensortap\n"
    )


def _fish(commands: dict[str, tuple[str, list[argparse.Action]]]) -> str:
    lines = ["complete -c tensortap -n __fish_use_subcommand -f"]
    for name, (text, actions) in commands.items():
        lines.append(f"complete -c tensortap -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}")
        for action in actions:
            flags = " ".join(
                f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                for option in action.option_strings
            )
            value = "" if action.nargs == 0 else " -r"
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c tensortap {seen} {flags}{value} -d {_quoted(_bare(action.help))}")
    return "\n".join(lines) + "\n"


def _bare(text: str | None) -> str:
    return (text or "").replace("[", "(").replace("]", ")").replace(":", ";").replace("%%", "%")


def _quoted(text: str) -> str:
    """For all three shells: a single quote becomes a typographic one."""
    return "'" + text.replace("'", "’").replace("`", "") + "'"
