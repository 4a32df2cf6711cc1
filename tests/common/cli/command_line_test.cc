#include "common/cli/command_line.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    line_.Group("Job");
    line_.Add("world-size", &world_size_, "how many ranks the job has").AtLeast(1).Required();
    line_.Add("job", &job_, "name of the job").Value("NAME");
    line_.Group("Time");
    line_.Add("lease", &lease_, "silence longer than this is a rank's death");
    line_.Add("plane", &plane_, "data plane").OneOf({"auto", "shm"});
    line_.Add("keeper", &keeper_, "fork a keeper");
    line_.Add("done", &done_, "end with the job");
    line_.Add("lr", &lr_, "learning rate");
    line_.Add("seed", &seed_, "of the data");
    line_.Add("offset", &offset_, "in elements");
    line_.Add("launched", &launched_, "set by the launcher").Hidden();
    line_
        .Add(
            "size",
            [this](const std::string& text) {
              size_ = text;
              return text == "much" ? absl::InvalidArgumentError("expected a size such as 8GiB")
                                    : absl::OkStatus();
            },
            "of the memory")
        .Value("SIZE")
        .Default("all");
  }

  std::string Error(const std::vector<std::string>& arguments) {
    const absl::Status status = line_.Parse(arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  int world_size_ = 0;
  std::string job_ = "optshard";
  absl::Duration lease_ = absl::Seconds(5);
  std::string plane_ = "auto";
  bool keeper_ = true;
  bool done_ = false;
  bool launched_ = false;
  double lr_ = 0.002;
  uint64_t seed_ = 7;
  int64_t offset_ = 0;
  std::string size_;
  CommandLine line_{{"a-program", "Does something.", {"a-program --world-size=2"}}};
};

TEST_F(CommandLineTest, Parse_BothSpellingsAndForms_SetTheTargets) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--world-size=3", "--job=a_b-c"},
        {"--world_size=3", "--job", "a_b-c"},
        {"--world_size", "3", "--job=a_b-c"},
        {"--world-size=1", "--job=x", "--world_size=3", "--job=a_b-c"}}) {
    world_size_ = 0;
    job_ = "";
    const absl::Status parsed = line_.Parse(arguments);
    ASSERT_TRUE(parsed.ok()) << parsed;
    EXPECT_EQ(world_size_, 3);
    EXPECT_EQ(job_, "a_b-c");
  }
}

TEST_F(CommandLineTest, Parse_NothingButTheRequired_KeepsTheDefaults) {
  ASSERT_TRUE(line_.Parse({"--world-size=1"}).ok());
  EXPECT_EQ(job_, "optshard");
  EXPECT_EQ(lease_, absl::Seconds(5));
  EXPECT_TRUE(keeper_);
  EXPECT_FALSE(done_);
  EXPECT_EQ(size_, "");
  EXPECT_FALSE(line_.wants_help());
}

TEST_F(CommandLineTest, Parse_EmptyValue_IsEmptyAndNotTheNextArgument) {
  ASSERT_TRUE(line_.Parse({"--job=", "--world-size=1"}).ok());
  EXPECT_EQ(job_, "");
  EXPECT_EQ(world_size_, 1);
}

TEST_F(CommandLineTest, Parse_OtherTypes_AreRead) {
  ASSERT_TRUE(
      line_
          .Parse({"--world-size=1", "--lease=1m30s", "--lr=-1e-3", "--plane=shm",
                  "--seed=18446744073709551615", "--offset=-9223372036854775808", "--size", "8GiB"})
          .ok());
  EXPECT_EQ(lease_, absl::Seconds(90));
  EXPECT_EQ(lr_, -1e-3);
  EXPECT_EQ(plane_, "shm");
  EXPECT_EQ(seed_, 18446744073709551615u);
  EXPECT_EQ(offset_, INT64_MIN);
  EXPECT_EQ(size_, "8GiB");
}

TEST_F(CommandLineTest, Parse_Flags_HaveFourForms) {
  for (const char* off : {"--nokeeper", "--no-keeper", "--no_keeper", "--keeper=false"}) {
    keeper_ = true;
    const absl::Status parsed = line_.Parse({"--world-size=1", off, "--done"});
    ASSERT_TRUE(parsed.ok()) << off << ": " << parsed;
    EXPECT_FALSE(keeper_) << off;
    EXPECT_TRUE(done_);
  }
  keeper_ = false;
  ASSERT_TRUE(line_.Parse({"--world-size=1", "--keeper=true"}).ok());
  EXPECT_TRUE(keeper_);
}

TEST_F(CommandLineTest, Parse_BadValue_NamesOptionValueAndWhatWasExpected) {
  EXPECT_EQ(Error({"--world-size=two"}), "--world-size=two: expected a whole number of at least 1");
  EXPECT_EQ(Error({"--world_size=0"}), "--world-size=0: expected a whole number of at least 1");
  EXPECT_EQ(Error({"--lease=5"}), "--lease=5: expected a duration such as 500ms, 5s or 1m30s");
  EXPECT_EQ(Error({"--lease=-5s"}), "--lease=-5s: expected a duration such as 500ms, 5s or 1m30s");
  EXPECT_EQ(Error({"--lease=inf"}), "--lease=inf: expected a duration such as 500ms, 5s or 1m30s");
  EXPECT_EQ(Error({"--plane=tcp"}), "--plane=tcp: expected one of auto, shm");
  EXPECT_EQ(Error({"--lr=fast"}), "--lr=fast: expected a number");
  EXPECT_EQ(Error({"--seed=-1"}), "--seed=-1: expected a whole number of at least 0");
  EXPECT_EQ(Error({"--size=much"}), "--size=much: expected a size such as 8GiB");
  EXPECT_THAT(Error({"--keeper=perhaps"}), HasSubstr("keeper"));
}

TEST_F(CommandLineTest, Parse_NotUnderstood_IsNamedAlsoWithHelp) {
  EXPECT_EQ(Error({"--world-size=1", "--wordl-size=2"}),
            "unknown option --wordl-size=2; see --help");
  EXPECT_EQ(Error({"--world-size=1", "--help", "--other"}), "unknown option --other; see --help");
  EXPECT_EQ(Error({"--world-size=1", "stray"}), "unexpected argument stray; see --help");
  EXPECT_EQ(Error({"--world-size=1", "--", "--job=x"}), "unknown option --; see --help");
  EXPECT_THAT(Error({"--world-size=1", "--job"}), HasSubstr("--job"));
}

TEST_F(CommandLineTest, Parse_WithoutARequiredOption_NamesIt) {
  EXPECT_EQ(Error({}), "--world-size is missing; see --help");
  EXPECT_TRUE(line_.Parse({"--help"}).ok());
  EXPECT_TRUE(line_.wants_help());
}

TEST_F(CommandLineTest, Parse_Version_NeedsNothingElse) {
  ASSERT_TRUE(line_.Parse({"--version"}).ok());
  EXPECT_TRUE(line_.wants_version());
  EXPECT_FALSE(line_.wants_help());
  EXPECT_THAT(line_.Version(), MatchesRegex("a-program [0-9]+[.][0-9]+[.][0-9]+"));
  EXPECT_EQ(Error({"--version", "--other"}), "unknown option --other; see --help");
  ASSERT_TRUE(line_.Parse({"--world-size=1"}).ok());
  EXPECT_FALSE(line_.wants_version());
}

TEST_F(CommandLineTest, Help_ShowsEverythingButHiddenOptions) {
  const std::string help = line_.Help();
  EXPECT_THAT(help, AllOf(HasSubstr("Does something.\n"),
                          HasSubstr("Usage: a-program --world-size=N [OPTION...]\n"),
                          HasSubstr("\nJob:\n  --world-size=N  (required)\n      how many ranks"),
                          HasSubstr("  --job=NAME  (default: optshard)\n"),
                          HasSubstr("\nTime:\n  --lease=DURATION  (default: 5s)\n")));
  EXPECT_THAT(help, AllOf(HasSubstr("  --plane=auto|shm  (default: auto)\n"),
                          HasSubstr("  --[no-]keeper  (default: on)\n"),
                          HasSubstr("  --[no-]done  (default: off)\n"),
                          HasSubstr("  --size=SIZE  (default: all)\n"), HasSubstr("  --help\n"),
                          HasSubstr("  --version\n"),
                          HasSubstr("\nExamples:\n  a-program --world-size=2\n"),
                          Not(HasSubstr("launched"))));
}

TEST_F(CommandLineTest, Help_LongText_IsWrapped) {
  std::string text = "first";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&text, " word", i);
  for (const auto line : absl::StrSplit(Wrapped(text, 6), '\n')) EXPECT_LE(line.size(), 80u);
  EXPECT_THAT(Wrapped(text, 6), AllOf(HasSubstr("      first word0"), HasSubstr("word39\n")));
}

class CommandLineArguments : public ::testing::Test {
 protected:
  CommandLineArguments() {
    line_.AddArgument("COMMAND", &command_, "what to do", /*required=*/true);
    line_.AddArgument("NAME", &name_, "of which", /*required=*/false);
    line_.Add("dry-run", &dry_run_, "only say it");
  }

  std::string command_;
  std::string name_ = "all";
  bool dry_run_ = false;
  CommandLine line_{{"tool", "A tool.", {"tool list"}}};
};

TEST_F(CommandLineArguments, InOrder_AroundOptions_AreSet) {
  ASSERT_TRUE(line_.Parse({"list", "--dry-run", "one"}).ok());
  EXPECT_EQ(command_, "list");
  EXPECT_EQ(name_, "one");
  EXPECT_TRUE(dry_run_);
}

TEST_F(CommandLineArguments, LeftOut_KeepTheirDefaultOrAreMissing) {
  ASSERT_TRUE(line_.Parse({"list"}).ok());
  EXPECT_EQ(name_, "all");
  EXPECT_THAT(std::string(line_.Parse({}).message()), HasSubstr("COMMAND is missing"));
  EXPECT_TRUE(line_.Parse({"--help"}).ok());
  EXPECT_THAT(std::string(line_.Parse({"list", "one", "two"}).message()),
              HasSubstr("unexpected argument two"));
  EXPECT_THAT(std::string(line_.Parse({"list", "--two"}).message()),
              HasSubstr("unknown option --two"));
}

TEST_F(CommandLineArguments, Help_ShowsThem) {
  EXPECT_THAT(line_.Help(), AllOf(HasSubstr("Usage: tool COMMAND [NAME] [OPTION...]\n"),
                                  HasSubstr("Arguments:\n  COMMAND\n      what to do\n")));
}

class CommandOfAnotherProgramTest : public ::testing::Test {
 protected:
  CommandOfAnotherProgramTest() {
    line_.Group("Job");
    line_.Add("ranks", &ranks_, "how many").Short('n').AtLeast(1);
    line_.AddCommand("PROGRAM", &command_, "what each rank runs");
  }

  std::string Error(const std::vector<std::string>& arguments) {
    return std::string(line_.Parse(arguments).message());
  }

  int ranks_ = 1;
  std::vector<std::string> command_;
  CommandLine line_{{"launch", "Starts ranks.", {"launch -n 2 -- ./trainer"}}};
};

TEST_F(CommandOfAnotherProgramTest, Parse_AfterTheDashes_EverythingIsItsOwn) {
  ASSERT_EQ(Error({"-n", "3", "--", "./trainer", "--ranks=x", "--help", "--", ""}), "");
  EXPECT_EQ(ranks_, 3);
  EXPECT_EQ(command_, (std::vector<std::string>{"./trainer", "--ranks=x", "--help", "--", ""}));
  EXPECT_FALSE(line_.wants_help());
}

TEST_F(CommandOfAnotherProgramTest, Parse_TheLetter_IsTheOption) {
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"-n4"}, {"-n", "4"}, {"--ranks=4"}, {"--ranks", "4"}}) {
    ranks_ = 1;
    std::vector<std::string> arguments = given;
    arguments.insert(arguments.end(), {"--", "./trainer"});
    EXPECT_EQ(Error(arguments), "") << given.front();
    EXPECT_EQ(ranks_, 4) << given.front();
  }
  EXPECT_THAT(Error({"-n", "0", "--", "./trainer"}), HasSubstr("--ranks=0: expected"));
}

TEST_F(CommandOfAnotherProgramTest, Parse_NoProgram_SaysWhereItStands) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"-n", "2"}, {"-n", "2", "--"}}) {
    EXPECT_THAT(Error(arguments),
                AllOf(HasSubstr("PROGRAM is missing"), HasSubstr("after \"--\"")));
  }
  EXPECT_THAT(Error({"-n", "2", "./trainer"}), HasSubstr("unexpected argument ./trainer"));
}

TEST_F(CommandOfAnotherProgramTest, Help_BeforeTheDashes_NeedsNoProgram) {
  EXPECT_EQ(Error({"--help"}), "");
  EXPECT_TRUE(line_.wants_help());
  EXPECT_THAT(line_.Help(), AllOf(HasSubstr("Usage: launch [OPTION...] -- PROGRAM [ARGUMENT...]\n"),
                                  HasSubstr("  PROGRAM\n      what each rank runs\n"),
                                  HasSubstr("  -n, --ranks=N  (default: 1)\n")));
}

}  // namespace
}  // namespace optshard
