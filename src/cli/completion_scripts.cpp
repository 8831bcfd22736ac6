#include <sstream>

#include "cli/completion.hpp"

namespace tessera::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& separator = " ") {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

// For single-quoted words of bash, zsh and fish: the quote itself is the one character that matters to all of them.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '\n')
      out += ' ';
    else
      out += c;
  }
  return out + "'";
}

std::vector<std::string> all_names(const CompletionCommand& command) {
  std::vector<std::string> names;
  for (const CompletionOption& option : command.options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// The first positional stands for all: what a command takes first is what is typed by hand.
ValueKind first_positional(const CompletionCommand& command) {
  return command.positionals.empty() ? ValueKind{} : command.positionals.front();
}

// `command` grows by each word that names a child of what it already is; the same loop in bash and zsh.
std::string walk(const std::vector<CompletionCommand>& commands) {
  std::string patterns;
  for (const CompletionCommand& command : commands) {
    if (command.path.find(' ') != std::string::npos) patterns += (patterns.empty() ? "" : "|") + quoted(command.path);
  }
  return "    case \"$command $word\" in\n      " + patterns + ") command=\"$command $word\" ;;\n    esac\n";
}

// By mapfile, because a file's name may hold spaces.
std::string bash_words(const std::string& generator) { return "mapfile -t COMPREPLY < <(" + generator + " -- \"$current\")"; }

std::string bash_reply(const ValueKind& value) {
  switch (value.kind) {
    case ValueKind::Kind::choices: return bash_words("compgen -W " + quoted(joined(value.choices)));
    case ValueKind::Kind::folder: return "compopt -o filenames 2>/dev/null; " + bash_words("compgen -d");
    case ValueKind::Kind::file: return "compopt -o filenames 2>/dev/null; " + bash_words("compgen -f");
    case ValueKind::Kind::run: return bash_words("cd runs 2>/dev/null && compgen -d");
    case ValueKind::Kind::free: return "COMPREPLY=()";
  }
  return "";
}

std::string zsh_reply(const ValueKind& value) {
  switch (value.kind) {
    case ValueKind::Kind::choices: return "compadd -- " + joined(value.choices);
    case ValueKind::Kind::folder: return "_files -/";
    case ValueKind::Kind::file: return "_files";
    case ValueKind::Kind::run: return "compadd -- runs/*(N/:t)";
    case ValueKind::Kind::free: return "_message value";
  }
  return "";
}

std::string fish_values(const ValueKind& value) {
  switch (value.kind) {
    case ValueKind::Kind::choices: return " -x -a " + quoted(joined(value.choices));
    case ValueKind::Kind::folder: return " -x -a '(__fish_complete_directories)'";
    case ValueKind::Kind::file: return " -r -F";
    case ValueKind::Kind::run: return " -x -a '(path basename runs/*/ 2>/dev/null; or ls runs 2>/dev/null)'";
    case ValueKind::Kind::free: return " -x";
  }
  return "";
}

constexpr std::size_t kMostValues = 2;

// For the first value of options and for the second: which option stands that many words before it, and what completes it. `word_before` is
// the beginning of the shell's words for "so many words before".
template <typename Reply>
std::string value_cases(const std::vector<CompletionCommand>& commands, const std::string& word_before, const Reply& reply) {
  std::ostringstream out;
  for (std::size_t value = 0; value < kMostValues; ++value) {
    out << "  case \"$command ${" << word_before << value + 1 << "]}\" in\n";
    for (const CompletionCommand& command : commands) {
      for (const CompletionOption& option : command.options) {
        if (option.values.size() <= value) continue;
        std::vector<std::string> patterns;
        for (const std::string& name : option.names) patterns.push_back(quoted(command.path + " " + name));
        out << "    " << joined(patterns, "|") << ") " << reply(option.values[value]) << "; return ;;\n";
      }
    }
    out << "  esac\n";
  }
  return out.str();
}

}  // namespace

std::string bash_completion(const std::vector<CompletionCommand>& commands) {
  std::ostringstream out;
  out << "# bash completion for tessera; load it with: source <(tessera completion bash)\n"
      << "_tessera() {\n"
      << "  local current=${COMP_WORDS[COMP_CWORD]} command=tessera word\n"
      << "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      << walk(commands) << "  done\n"
      << value_cases(commands, "COMP_WORDS[COMP_CWORD-", bash_reply) << "  case $command in\n";
  for (const CompletionCommand& command : commands) {
    out << "    " << quoted(command.path) << ")\n"
        << "      if [[ $current == -* ]]; then " << bash_words("compgen -W " + quoted(joined(all_names(command)))) << "\n"
        << "      else ";
    if (!command.children.empty())
      out << bash_words("compgen -W " + quoted(joined(command.children)));
    else
      out << bash_reply(first_positional(command));
    out << "; fi ;;\n";
  }
  out << "  esac\n}\ncomplete -F _tessera tessera\n";
  return out.str();
}

std::string zsh_completion(const std::vector<CompletionCommand>& commands) {
  std::ostringstream out;
  out << "#compdef tessera\n# zsh completion for tessera; load it with: source <(tessera completion zsh)\n"
      << "_tessera() {\n"
      << "  local command=tessera word\n"
      << "  local -a entries\n"
      << "  for word in ${words[2,CURRENT-1]}; do\n"
      << walk(commands) << "  done\n"
      << value_cases(commands, "words[CURRENT-", zsh_reply) << "  case $command in\n";
  for (const CompletionCommand& command : commands) {
    out << "    " << quoted(command.path) << ")\n      if [[ ${words[CURRENT]} == -* ]]; then\n        entries=(";
    for (const CompletionOption& option : command.options) {
      for (const std::string& name : option.names) out << " " << quoted(name + ":" + option.description);
    }
    out << " )\n        _describe option entries\n      else\n        ";
    if (!command.children.empty()) {
      out << "entries=(";
      for (const CompletionCommand& child : commands) {
        const std::size_t last = child.path.rfind(' ');
        if (last != std::string::npos && child.path.substr(0, last) == command.path) {
          out << " " << quoted(child.path.substr(last + 1) + ":" + child.description);
        }
      }
      out << " )\n        _describe command entries\n";
    } else {
      out << zsh_reply(first_positional(command)) << "\n";
    }
    out << "      fi ;;\n";
  }
  out << "  esac\n}\nif [[ $funcstack[1] == _tessera ]]; then _tessera \"$@\"; else compdef _tessera tessera; fi\n";
  return out.str();
}

std::string fish_completion(const std::vector<CompletionCommand>& commands) {
  std::ostringstream out;
  out << "# fish completion for tessera; load it with: tessera completion fish | source\n"
      << "function __tessera_at\n"
      << "  set -l command tessera\n"
      << "  for word in (commandline -opc)[2..-1]\n"
      << "    switch \"$command $word\"\n      case";
  for (const CompletionCommand& command : commands) {
    if (command.path.find(' ') != std::string::npos) out << " " << quoted(command.path);
  }
  out << "\n        set command \"$command $word\"\n    end\n  end\n  test \"$command\" = \"$argv\"\nend\n"
      << "function __tessera_second\n  set -l words (commandline -opc)\n  contains -- \"$words[-2]\" $argv\nend\n"
      << "complete -c tessera -f\n";
  for (const CompletionCommand& command : commands) {
    const std::string here = "complete -c tessera -n " + quoted("__tessera_at " + command.path);
    for (const CompletionCommand& child : commands) {
      const std::size_t last = child.path.rfind(' ');
      if (last == std::string::npos || child.path.substr(0, last) != command.path) continue;
      out << here << " -a " << quoted(child.path.substr(last + 1)) << " -d " << quoted(child.description) << "\n";
    }
    for (const CompletionOption& option : command.options) {
      out << here;
      for (const std::string& name : option.names) out << (name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1));
      if (!option.values.empty()) out << fish_values(option.values.front());
      out << " -d " << quoted(option.description) << "\n";
      if (option.values.size() < kMostValues) continue;
      const std::string second = "__tessera_at " + command.path + "; and __tessera_second " + joined(option.names);
      out << "complete -c tessera -n " << quoted(second) << fish_values(option.values[1]) << "\n";
    }
    const ValueKind first = first_positional(command);
    if (first.kind != ValueKind::Kind::free) out << here << (first.kind == ValueKind::Kind::file ? " -F" : fish_values(first)) << "\n";
  }
  return out.str();
}

}  // namespace tessera::cli
