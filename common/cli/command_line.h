// The command line of a program: what it understands, its help page, and what was given.
#ifndef OPTSHARD_COMMON_CLI_COMMAND_LINE_H_
#define OPTSHARD_COMMON_CLI_COMMAND_LINE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "common/cli/option.h"

namespace optshard {

// Options are written --name=VALUE or --name VALUE, some also by a letter, with dashes or
// underscores within the name. The last of several values counts. Thread-compatible.
class CommandLine {
 public:
  struct Page {
    std::string program;                // "optshard-server"
    std::string what;                   // what the program is, in whole sentences
    std::vector<std::string> examples;  // whole command lines
  };
  explicit CommandLine(Page page);

  // The options that are added from here on stand below this title on the help page.
  void Group(std::string title);

  // `target` and `help` as in CommandOption's constructors. The reference is good for the life of
  // this object.
  template <typename Target>
  CommandOption& Add(std::string name, Target target, std::string help) {
    return AddOption(
        std::make_unique<CommandOption>(std::move(name), std::move(target), std::move(help)));
  }

  // An argument without a name: the first, the second, ... in the order of these calls. One that is
  // not required may be left out, and so may all after it; its target then stays as it is.
  void AddArgument(std::string name, std::string* target, std::string help, bool required);

  // For a program that runs another one: all that stands after "--" is that one's command line, its
  // options too. Required.
  void AddCommand(std::string name, std::vector<std::string>* target, std::string help);

  // Sets the targets; `arguments` are without the program's name. INVALID_ARGUMENT for an unknown
  // option, a stray argument, a bad or missing value, or an absent required option or argument.
  // With --help or --version only the last of these is no error.
  absl::Status Parse(const std::vector<std::string>& arguments);
  // Whether the arguments had --help or -h.
  bool wants_help() const { return wants_help_; }
  // Whether they had --version.
  bool wants_version() const { return wants_version_; }

  std::string Help() const;
  // Of the program: "optshard-server 0.1.0".
  std::string Version() const;

  // For main: parses, and prints the help page, the version or the error. Returns the exit code
  // where the program must end now: 0 after what was asked for, 2 after an error.
  absl::optional<int> ParseOrEnd(int argc, char** argv);

 private:
  struct Argument {
    std::string name;
    std::string* target;
    std::string help;
    bool required;
  };
  struct Command {
    std::string name;
    std::vector<std::string>* target = nullptr;  // null: there is none
    std::string help;
  };
  struct Titled {
    std::string title;
    std::vector<std::unique_ptr<CommandOption>> options;
  };

  CommandOption& AddOption(std::unique_ptr<CommandOption> option);
  absl::Status ParseOptions(const std::vector<std::string>& arguments);
  absl::Status CheckCommand() const;
  absl::Status SetArguments(const std::vector<std::string>& given) const;
  absl::Status CheckRequired(size_t given) const;
  // Of the program itself, which then does nothing else.
  bool is_asked() const { return wants_help_ || wants_version_; }

  const Page page_;
  std::vector<Argument> arguments_;
  Command command_;
  std::vector<Titled> groups_;
  bool wants_help_ = false;
  bool wants_version_ = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CLI_COMMAND_LINE_H_
