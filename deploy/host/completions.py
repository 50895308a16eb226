#!/usr/bin/env python3
"""completions.py BUILD-FOLDER FOLDER: writes what makes bash, zsh and fish complete commands, options and their words, from --help."""
import os
import sys

from help import PROGRAMS, commands_of, help_of

FILE_WORDS = ("FILE", "DIR", "PATH", "IN", "OUT")


def words_of(o):
    """The words that an option takes, if its help lists them: "on|off", "N|auto" gives auto."""
    return [word for word in o.value.split("|") if word and word == word.lower()] if o.value else []


def takes_file(o):
    return any(word.strip("[]") in FILE_WORDS for word in o.value.split("|"))


def bash_case(h):
    """The lines of `case $previous` for one program."""
    lines, files = [], [f"--{o.name}" for o in h.options if takes_file(o)]
    for o in h.options:
        if words_of(o) and not takes_file(o):
            lines.append(f'        --{o.name}) COMPREPLY=($(compgen -W "{" ".join(words_of(o))}" -- "$word")); return ;;')
    if files:
        lines.append(f'        {"|".join(files)}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
    return lines


def bash(helps, commands):
    out = ["# bash completion of FastDecode, made from --help", "_fastdecode() {",
           '    local options word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} program=${COMP_WORDS[0]##*/}',
           '    program=${program#fastdecode-}',
           '    COMPREPLY=()',
           '    if [ "$program" = fastdecode ]; then',
           '        if [ "$COMP_CWORD" = 1 ]; then',
           f'            COMPREPLY=($(compgen -W "{" ".join(name for name, _ in commands)} --help --version" -- "$word"))',
           '            return', '        fi', '        program="fastdecode ${COMP_WORDS[1]}"', '    fi',
           '    case $program in']
    for h in helps:
        out += [f'    "{" ".join(h.program)}")', "        case $previous in", *bash_case(h), "        esac",
                f'        options="{" ".join("--" + o.name for o in h.options)}" ;;']
    out += ["    *) return ;;", "    esac", '    case $word in', '    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;',
            '    *) COMPREPLY=($(compgen -f -- "$word")) ;;', "    esac", "}",
            f"complete -o filenames -F _fastdecode fastdecode {' '.join(h.name for h in helps if len(h.program) == 1)}"]
    return "\n".join(out) + "\n"


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_option(o):
    says = o.says.replace("[", "(").replace("]", ")").replace(":", ",")
    if not o.value:
        return quoted(f"--{o.name}[{says}]")
    what = f"({' '.join(words_of(o))})" if words_of(o) and not takes_file(o) else "_files" if takes_file(o) else " "
    return quoted(f"--{o.name}=[{says}]:{o.value.replace(':', ',')}:{what}")


def zsh(helps, commands):
    services = [h for h in helps if len(h.program) == 1]
    out = [f"#compdef fastdecode {' '.join(h.name for h in services)}", "# zsh completion of FastDecode, made from --help", "_fastdecode() {",
           "    local -a commands", "    local program=${${service:t}#fastdecode-}", "    if [[ $program == fastdecode ]]; then", "        if (( CURRENT == 2 )); then",
           "            commands=(" + " ".join(quoted(f"{name}:{says.replace(':', ',')}") for name, says in commands) + ")",
           "            _describe command commands", "            return", "        fi", '        program="fastdecode $words[2]"',
           "        shift words", "        (( CURRENT-- ))", "    fi", "    case $program in"]
    for h in helps:
        out += [f"    {quoted(' '.join(h.program))})", "        _arguments \\"]
        out += [f"            {zsh_option(o)} \\" for o in h.options]
        out += ["            '*:file:_files' ;;"]
    return "\n".join([*out, "    esac", "}", '_fastdecode "$@"']) + "\n"


def fish(helps, commands):
    out = ["# fish completion of FastDecode, made from --help"]
    for name, says in commands:
        out.append(f"complete -c fastdecode -n __fish_use_subcommand -f -a {name} -d {quoted(says)}")
    for h in helps:
        when = f" -n '__fish_seen_subcommand_from {h.program[1]}'" if len(h.program) > 1 else ""
        for o in h.options:
            takes = ""
            if o.value:
                takes = " -r -F" if takes_file(o) else f" -x -a {quoted(' '.join(words_of(o)))}" if words_of(o) else " -x"
            out.append(f"complete -c {h.name if len(h.program) == 1 else h.program[0]}{when} -l {o.name}{takes} -d {quoted(o.says)}")
    return "\n".join(out) + "\n"


def main():
    build, folder = sys.argv[1:]
    helps, commands = [help_of(build, program) for program in PROGRAMS], commands_of(build)
    os.makedirs(folder, exist_ok=True)
    for name, make in (("fastdecode.bash", bash), ("_fastdecode", zsh), ("fastdecode.fish", fish)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(make(helps, commands))


if __name__ == "__main__":
    main()
