#include "common/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr int kUsageError = 2;
constexpr char kHelp[] = "--help";
constexpr char kVersion[] = "--version";

// As CLI11 reads them, from the last to the first: underscores of names are dashes, and an empty
// value is an argument of its own, for CLI11 takes the next argument for the value of "--name=".
std::vector<std::string> Normalized(const std::vector<std::string>& arguments) {
  std::vector<std::string> normalized;
  bool names = true;
  for (const std::string& argument : arguments) {
    if (argument == "--") names = false;
    if (!names || !absl::StartsWith(argument, "--")) {
      normalized.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    if (equals == std::string::npos) {
      normalized.push_back(name);
    } else if (equals + 1 == argument.size()) {
      normalized.insert(normalized.end(), {name, ""});
    } else {
      normalized.push_back(name + argument.substr(equals));
    }
  }
  std::reverse(normalized.begin(), normalized.end());
  return normalized;
}

CLI::Option* Declare(const CommandOption& option, CLI::App& app) {
  const std::string& name = option.name();
  const std::string names = absl::StrCat(
      option.letter() != 0 ? absl::StrCat("-", std::string(1, option.letter()), ",") : "", "--",
      name);
  CLI::Option* declared = option.is_flag()
                              ? app.add_flag(absl::StrCat(names, ",!--no-", name, ",!--no", name))
                              : app.add_option(names)->type_name(option.value_name());
  return declared->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

absl::Status NotUnderstood(const std::string& argument) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StartsWith(argument, "-") ? "unknown option " : "unexpected argument ",
                   argument, "; see --help"));
}

}  // namespace

CommandLine::CommandLine(Page page) : page_(std::move(page)) {}

void CommandLine::Group(std::string title) { groups_.push_back({std::move(title), {}}); }

void CommandLine::AddArgument(std::string name, std::string* target, std::string help,
                              bool required) {
  arguments_.push_back({std::move(name), target, std::move(help), required});
}

void CommandLine::AddCommand(std::string name, std::vector<std::string>* target, std::string help) {
  command_ = {std::move(name), target, std::move(help)};
}

CommandOption& CommandLine::AddOption(std::unique_ptr<CommandOption> option) {
  if (groups_.empty()) Group("Options");
  groups_.back().options.push_back(std::move(option));
  return *groups_.back().options.back();
}

absl::Status CommandLine::Parse(const std::vector<std::string>& arguments) {
  if (command_.target == nullptr) return ParseOptions(arguments);
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  command_.target->assign(end == arguments.end() ? end : end + 1, arguments.end());
  absl::Status parsed = ParseOptions({arguments.begin(), end});
  return parsed.ok() && !is_asked() ? CheckCommand() : parsed;
}

absl::Status CommandLine::CheckCommand() const {
  if (!command_.target->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      command_.name, " is missing: it stands after \"--\", with its arguments; see --help"));
}

absl::Status CommandLine::ParseOptions(const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag();  // CLI11's own would hide errors in the rest of the line
  app.allow_extras();
  const CLI::Option* help = app.add_flag(absl::StrCat(kHelp, ",-h"));
  const CLI::Option* version = app.add_flag(kVersion);
  std::vector<std::pair<const CommandOption*, CLI::Option*>> declared;
  for (const Titled& group : groups_) {
    for (const auto& option : group.options) {
      declared.emplace_back(option.get(), Declare(*option, app));
    }
  }
  try {
    app.parse(Normalized(arguments));
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), "; see --help"));
  }
  const std::vector<std::string> unnamed = app.remaining();
  absl::Status understood = SetArguments(unnamed);
  if (!understood.ok()) return understood;
  for (const auto& [option, given] : declared) {
    if (given->count() == 0) continue;
    absl::Status set = option->Set(given->results().back());
    if (!set.ok()) return set;
  }
  wants_help_ = help->count() > 0;
  wants_version_ = version->count() > 0;
  if (is_asked()) return absl::OkStatus();
  for (const auto& [option, given] : declared) {
    if (option->is_required() && given->count() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", option->name(), " is missing; see --help"));
    }
  }
  return CheckRequired(unnamed.size());
}

absl::Status CommandLine::SetArguments(const std::vector<std::string>& given) const {
  for (size_t i = 0; i < given.size(); ++i) {
    if (i >= arguments_.size() || absl::StartsWith(given[i], "-")) return NotUnderstood(given[i]);
    *arguments_[i].target = given[i];
  }
  return absl::OkStatus();
}

absl::Status CommandLine::CheckRequired(size_t given) const {
  for (size_t i = given; i < arguments_.size(); ++i) {
    if (!arguments_[i].required) continue;
    return absl::InvalidArgumentError(absl::StrCat(arguments_[i].name, " is missing; see --help"));
  }
  return absl::OkStatus();
}

std::string CommandLine::Help() const {
  std::string usage = absl::StrCat("Usage: ", page_.program);
  std::string arguments;
  for (const Argument& argument : arguments_) {
    absl::StrAppend(&usage, argument.required ? " " : " [", argument.name,
                    argument.required ? "" : "]");
    absl::StrAppend(&arguments, arguments.empty() ? "\nArguments:\n" : "", "  ", argument.name,
                    "\n", Wrapped(argument.help, 6));
  }
  std::string command;
  if (command_.target != nullptr) {
    command = absl::StrCat(" -- ", command_.name, " [ARGUMENT...]");
    absl::StrAppend(&arguments, arguments.empty() ? "\nArguments:\n" : "", "  ", command_.name,
                    "\n", Wrapped(command_.help, 6));
  }
  std::string options;
  for (const Titled& group : groups_) {
    absl::StrAppend(&options, "\n", group.title, ":\n");
    for (const auto& option : group.options) {
      if (option->is_hidden()) continue;
      absl::StrAppend(&options, option->Help());
      if (option->is_required()) {
        absl::StrAppend(&usage, " --", option->name(), "=", option->value_name());
      }
    }
  }
  std::string help =
      absl::StrCat(Wrapped(page_.what, 0), "\n", usage, " [OPTION...]", command, "\n", arguments,
                   options, "\nOther:\n", "  --help\n", Wrapped("print this page", 6),
                   "  --version\n", Wrapped("print the program's version", 6), "\nExamples:\n");
  for (const std::string& example : page_.examples) absl::StrAppend(&help, "  ", example, "\n");
  absl::StrAppend(
      &help, "\n",
      Wrapped("Names may have underscores instead of dashes. A value may follow after a "
              "space instead of \"=\". A DURATION is a number with a unit, or several: "
              "500ms, 5s, 1m30s.",
              0));
  return help;
}

std::string CommandLine::Version() const {
  return absl::StrCat(page_.program, " ", OPTSHARD_VERSION);
}

absl::optional<int> CommandLine::ParseOrEnd(int argc, char** argv) {
  const absl::Status parsed = Parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s: %s\n", page_.program.c_str(), std::string(parsed.message()).c_str());
    return kUsageError;
  }
  if (!is_asked()) return absl::nullopt;
  std::printf("%s", wants_help_ ? Help().c_str() : absl::StrCat(Version(), "\n").c_str());
  return EXIT_SUCCESS;
}

}  // namespace optshard
