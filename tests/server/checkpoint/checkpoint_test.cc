// What is saved is read again, by whomever.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/blob_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/commit.h"
#include "server/checkpoint/manifest_json.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/saved_model.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SavedModel;

using Checkpoint = testing::CheckpointFixture;

constexpr PartitionPolicy kPolicies[] = {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced};

TEST_F(Checkpoint, Saved_LoadsAtAnyWorldSizeUnderAnyPolicy) {
  StepNumber step = 0;
  for (const int from : {1, 2, 3}) {
    for (const PartitionPolicy saved : kPolicies) {
      const std::string name = Save(++step, from, saved);
      const auto reader = Open(name);
      ASSERT_EQ(reader.status(), absl::OkStatus());
      for (const int to : {1, 2, 3, 5}) {
        for (const PartitionPolicy policy : kPolicies) {
          EXPECT_EQ(SavedModel(step).Difference(**reader, to, policy), "") << from << " to " << to;
        }
      }
      EXPECT_TRUE(Verify(name).empty());
    }
  }
}

TEST_F(Checkpoint, Saved_InManyBlocks_LoadsEverySlice) {
  const SavedModel model(1, /*big_elements=*/700'000);
  const auto saved = model.Save(*root_, 2, PartitionPolicy::kBalanced);
  ASSERT_EQ(saved.status(), absl::OkStatus());
  const auto reader = Open(saved->name).value();
  for (const int to : {1, 2, 3}) {
    EXPECT_EQ(model.Difference(*reader, to, PartitionPolicy::kBalanced), "");
  }
  // A few elements around the end of the first block, and of the first rank's tensor.
  const int big = 6;
  std::string whole(size_t{700'000} * 4, '?');
  ASSERT_EQ(reader->Read(big, 0, ArrayPart::kValues, 0, 700'000, absl::MakeSpan(whole)),
            absl::OkStatus());
  for (const int64_t around : {int64_t{1 << 18}, saved->manifest.files[1].bytes / 8}) {
    std::string some(40, '?');
    ASSERT_EQ(reader->Read(big, 0, ArrayPart::kValues, around - 5, 10, absl::MakeSpan(some)),
              absl::OkStatus());
    EXPECT_EQ(some, whole.substr(static_cast<size_t>(around - 5) * 4, 40));
  }
}

TEST_F(Checkpoint, Manifest_IsReadBackAsItWas) {
  const auto saved = SavedModel(7).Save(*root_, 3, PartitionPolicy::kGreedy).value();
  const CheckpointManifest back = Open(saved.name).value()->manifest();
  EXPECT_EQ(ToText(back), ToText(saved.manifest));
  EXPECT_EQ(back.step, 7u);
  EXPECT_EQ(back.policy, PartitionPolicy::kGreedy);
  EXPECT_EQ(back.groups[0].hyperparameters, saved.manifest.groups[0].hyperparameters);
  EXPECT_TRUE(std::signbit(back.groups[1].hyperparameters.Number("eps")));
  EXPECT_EQ(back.saved_at, saved.manifest.saved_at);
  EXPECT_EQ(back.parameters[5].name, "100% odd\n\xff[0:3]/\"name");
}

TEST_F(Checkpoint, Read_OfWhatIsNotThere_IsInvalid) {
  const auto reader = Open(Save(1)).value();
  const auto read = [&](int parameter, int array, ArrayPart part, int64_t offset,
                        int64_t elements) {
    std::string to(4096, '?');
    return reader->Read(parameter, array, part, offset, elements, absl::MakeSpan(to)).code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const ArrayPart values = ArrayPart::kValues;
  EXPECT_EQ(read(-1, 0, values, 0, 1), invalid);
  EXPECT_EQ(read(7, 0, values, 0, 1), invalid);
  EXPECT_EQ(read(0, 3, values, 0, 1), invalid);
  EXPECT_EQ(read(0, -1, values, 0, 1), invalid);
  EXPECT_EQ(read(0, 0, ArrayPart::kScales, 0, 1), invalid);
  EXPECT_EQ(read(0, 0, values, -1, 1), invalid);
  EXPECT_EQ(read(0, 0, values, 2100, 1), invalid);
  EXPECT_EQ(read(0, 0, values, 1, INT64_MAX), invalid);
  EXPECT_EQ(read(1, 1, values, 100, 256), invalid);
  EXPECT_EQ(read(1, 1, values, 256, 100), invalid);
}

TEST_F(Checkpoint, Cancelled_EndsWithTheReasonAndLeavesNoFile) {
  Cancellation cancellation;
  OwnerWriteOptions options;
  options.cancellation = &cancellation;
  int64_t last = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, all);
    last = done;
    if (done > all / 2) cancellation.Cancel(absl::CancelledError("the user"));
  };
  EXPECT_EQ(SavedModel(1).Save(*root_, 1, PartitionPolicy::kGreedy, options).status(),
            absl::CancelledError("the user"));
  EXPECT_GT(last, 0);
  const auto entries = ListCheckpoints(*root_).value();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].state, CheckpointState::kUncommitted);
  EXPECT_TRUE(root_->OpenDirectory(entries[0].name).value()->List().value().empty());
}

TEST_F(Checkpoint, Source_ThatFails_EndsTheWrite) {
  const SavedModel model(1);
  OwnerState state = model.StateOf(0, 1, PartitionPolicy::kGreedy);
  state.slices[2].values = [](int64_t, int64_t) { return absl::UnavailableError("gone"); };
  auto made = CreateCheckpoint(*root_, 1).value();
  const CheckpointManifest description = model.Description(1, PartitionPolicy::kGreedy);
  const absl::Status written =
      WriteOwnerFile(*made.directory, description.parameters, state).status();
  EXPECT_EQ(written.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(written.message()), HasSubstr("exp_avg_sq/fc.weight: gone"));
  EXPECT_TRUE(made.directory->List().value().empty());
}

TEST_F(Checkpoint, Slices_ThatNoArrayHas_AreRefused) {
  const SavedModel model(1);
  auto made = CreateCheckpoint(*root_, 1).value();
  const CheckpointManifest description = model.Description(1, PartitionPolicy::kGreedy);
  const auto message = [&](const auto& change) {
    OwnerState state = model.StateOf(0, 1, PartitionPolicy::kGreedy);
    change(state.slices);
    const absl::Status written =
        WriteOwnerFile(*made.directory, description.parameters, state).status();
    EXPECT_EQ(written.code(), absl::StatusCode::kInvalidArgument);
    return std::string(written.message());
  };
  EXPECT_THAT(message([](auto& slices) { slices[0].parameter = 7; }), HasSubstr("parameter 7"));
  EXPECT_THAT(message([](auto& slices) { slices[0].array = 9; }), HasSubstr("array 9"));
  EXPECT_THAT(message([](auto& slices) { ++slices[0].elements; }), HasSubstr("2101 elements"));
  EXPECT_THAT(message([](auto& slices) { slices.push_back(slices[0]); }), HasSubstr("saved twice"));
  EXPECT_THAT(message([](auto& slices) {
                slices[0].offset_elements = 1;
                slices[0].elements = INT64_MAX;
              }),
              HasSubstr("9223372036854775807 elements from 1 on"));
  // exp_avg of "dynamic", in codes.
  EXPECT_THAT(message([](auto& slices) { slices[4].elements = 100; }),
              HasSubstr("cut at multiples of 256"));
}

// What rank 1 says of the parameter of which both have elements, "big".
ParameterCount& Shared(std::vector<OwnerPart>& parts) {
  for (ParameterCount& count : parts[1].counts) {
    if (count.parameter == 6) return count;
  }
  ADD_FAILURE() << "rank 1 has nothing of it";
  return parts[1].counts[0];
}

TEST_F(Checkpoint, Parts_ThatDoNotMakeAWhole_AreNotCommitted) {
  const SavedModel model(1, /*big_elements=*/100'000);
  const PartitionPolicy policy = PartitionPolicy::kBalanced;
  auto made = CreateCheckpoint(*root_, 1).value();
  const CheckpointManifest description = model.Description(2, policy);
  std::vector<OwnerPart> parts;
  for (const Rank rank : {0, 1}) {
    parts.push_back(
        WriteOwnerFile(*made.directory, description.parameters, model.StateOf(rank, 2, policy))
            .value());
  }
  const auto message = [&](const auto& change) {
    std::vector<OwnerPart> changed = parts;
    change(changed);
    const absl::Status made = MakeManifest(description, changed).status();
    EXPECT_EQ(made.code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.message());
  };
  EXPECT_THAT(message([](auto& parts) { parts.pop_back(); }),
              HasSubstr("there are 1 files of a world of 2 ranks"));
  EXPECT_THAT(message([](auto& parts) { parts[1] = parts[0]; }),
              HasSubstr("file 1 is that of rank 0"));
  EXPECT_THAT(message([](auto& parts) { parts[0].counts.clear(); }),
              HasSubstr("no rank has counted the steps of parameter \""));
  EXPECT_THAT(
      message([](auto& parts) { ++Shared(parts).steps; }),
      AllOf(HasSubstr("parameter \"big\""), HasSubstr("rank 0 has counted"), HasSubstr("rank 1 ")));
  EXPECT_THAT(message([](auto& parts) { Shared(parts).scalars["mu_product"] += 1; }),
              AllOf(HasSubstr("; its slot mu_product is 0.05"), HasSubstr("parameter \"big\"")));
  EXPECT_THAT(message([](auto& parts) { parts[0].counts[0].parameter = 7; }),
              HasSubstr("parameter 7, of 7"));
  EXPECT_THAT(message([](auto& parts) {
                parts[0].file.bytes -= parts[0].file.tensors.back().bytes;
                parts[0].file.tensors.pop_back();
              }),
              HasSubstr("in no tensor"));

  const CheckpointManifest manifest = MakeManifest(description, parts).value();
  // A part that another machine has written to a disk of its own.
  ASSERT_EQ(made.directory->Remove("owner-00001.safetensors"), absl::OkStatus());
  const absl::Status committed = CommitCheckpoint(*made.directory, manifest);
  EXPECT_EQ(committed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(committed.message()),
              AllOf(HasSubstr("owner-00001.safetensors is not there"), HasSubstr("rank 1"),
                    HasSubstr("same file system")));
  ASSERT_TRUE(
      WriteOwnerFile(*made.directory, description.parameters, model.StateOf(1, 2, policy)).ok());
  ASSERT_EQ(CommitCheckpoint(*made.directory, manifest), absl::OkStatus());
  EXPECT_EQ(CommitCheckpoint(*made.directory, manifest).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(Checkpoint, Reader_HasOneFileOpenAtATime) {
  const auto reader = Open(Save(1, /*world_size=*/5)).value();
  EXPECT_EQ(SavedModel(1).Difference(*reader, 3, PartitionPolicy::kBalanced), "");
  EXPECT_LE(system_.most_open_files(), 2);
}

TEST_F(Checkpoint, Blob_ThatNobodyCouldHold_IsRefused) {
  const SavedModel model(1);
  auto made = CreateCheckpoint(*root_, 1).value();
  OwnerState state = model.StateOf(0, 1, PartitionPolicy::kGreedy);
  const std::string blob(kMaxBlobBytes + 1, 'x');
  state.blob = blob;
  const absl::Status written =
      WriteOwnerFile(*made.directory, model.Description(1, PartitionPolicy::kGreedy).parameters,
                     state)
          .status();
  EXPECT_EQ(written.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(written.message()),
              HasSubstr("blob of rank 0 has 65537 bytes, at most 65536"));

  CheckpointManifest manifest = Open(Save(2)).value()->manifest();
  ASSERT_EQ(manifest.Validate(), absl::OkStatus());
  for (CheckpointTensor& tensor : manifest.files[0].tensors) {
    if (!tensor.is_blob()) continue;
    tensor.bytes = kMaxBlobBytes + 1;
  }
  EXPECT_THAT(std::string(manifest.Validate().message()),
              HasSubstr("\"trainer_blob\" has 65537 bytes, at most 65536"));
}

// Two parts, and the manifest that goes with them.
struct Parts {
  NewCheckpoint made;
  CheckpointManifest manifest;
};
Parts WriteParts(Directory& root, StepNumber step) {
  const SavedModel model(step);
  const PartitionPolicy policy = PartitionPolicy::kBalanced;
  Parts written{CreateCheckpoint(root, step).value(), model.Description(2, policy)};
  std::vector<OwnerPart> parts;
  for (const Rank rank : {0, 1}) {
    parts.push_back(WriteOwnerFile(*written.made.directory, written.manifest.parameters,
                                   model.StateOf(rank, 2, policy))
                        .value());
  }
  written.manifest = MakeManifest(written.manifest, parts).value();
  return written;
}

TEST_F(Checkpoint, Commit_OfWhatCouldNotBeReadAgain_WritesNothing) {
  Parts parts = WriteParts(*root_, 1);
  const size_t files = parts.made.directory->List().value().size();
  CheckpointManifest early = parts.manifest;
  early.saved_at = absl::FromUnixMillis(-1);
  CheckpointManifest many = parts.manifest;
  many.groups.resize((1 << 14) + 1, many.groups[0]);
  for (const CheckpointManifest& wrong : {early, many}) {
    const absl::Status committed = CommitCheckpoint(*parts.made.directory, wrong);
    EXPECT_EQ(committed.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(committed.message()),
                AllOf(HasSubstr("could not be read again"),
                      ::testing::AnyOf(HasSubstr("saved_at_ms"), HasSubstr("groups"))));
    EXPECT_EQ(parts.made.directory->List().value().size(), files);
  }
  EXPECT_EQ(CommitCheckpoint(*parts.made.directory, parts.manifest), absl::OkStatus());
}

TEST_F(Checkpoint, Commit_BesideWhatADeadCommitterLeft_Succeeds) {
  Parts parts = WriteParts(*root_, 1);
  for (const char* left : {"manifest.json.unfinished", "manifest.json.unfinished.0"}) {
    ASSERT_TRUE(parts.made.directory->CreateFile(left).ok());
  }
  ASSERT_EQ(CommitCheckpoint(*parts.made.directory, parts.manifest), absl::OkStatus());
  EXPECT_EQ(ListCheckpoints(*root_).value()[0].state, CheckpointState::kCommitted);
}

TEST_F(Checkpoint, Commit_WhoseRenameFailsAfterItWasDone_Succeeds) {
  int succeeded = 0;
  for (int64_t operation = 0;; ++operation) {
    Parts parts = WriteParts(*root_, static_cast<StepNumber>(operation));
    const int64_t at = system_.operations() + operation;
    system_.FailDoneOperation(at, absl::NotFoundError("it has no such name any more"));
    const absl::Status committed = CommitCheckpoint(*parts.made.directory, parts.manifest);
    if (system_.operations() <= at) break;
    const auto entries = ListCheckpoints(*root_).value();
    const auto entry =
        std::find_if(entries.begin(), entries.end(),
                     [&](const CheckpointEntry& entry) { return entry.name == parts.made.name; });
    ASSERT_NE(entry, entries.end());
    // The rename is the only one whose result is looked at again; after a last sync that fails it
    // may be committed, which the error says.
    if (committed.ok()) {
      EXPECT_EQ(entry->state, CheckpointState::kCommitted);
      ++succeeded;
    } else if (entry->state == CheckpointState::kCommitted) {
      EXPECT_THAT(std::string(committed.message()), HasSubstr("a power failure may undo"));
    }
  }
  // The look for an earlier manifest, whose NOT_FOUND is the right answer, and the rename.
  EXPECT_EQ(succeeded, 2);
}

TEST_F(Checkpoint, Create_TakesTheNextAttempt_HoweverManyThereSeemToBe) {
  ASSERT_EQ(root_->CreateDirectory("step-000000000010.2147483646"), absl::OkStatus());
  ASSERT_EQ(root_->CreateDirectory("step-000000000010.2147483647"), absl::OkStatus());
  EXPECT_EQ(CreateCheckpoint(*root_, 10).value().name, "step-000000000010");
}

TEST_F(Checkpoint, List_HasTheNewestCommittedFirst) {
  Save(5);
  Save(20);
  Save(10);
  const std::string again = Save(20);
  EXPECT_EQ(again, "step-000000000020.1");
  ASSERT_EQ(CreateCheckpoint(*root_, 30).value().name, "step-000000000030");
  ASSERT_EQ(root_->CreateDirectory("lost+found"), absl::OkStatus());
  ASSERT_TRUE(root_->CreateFile("step-000000000099").ok());
  std::vector<std::string> names;
  const auto entries = ListCheckpoints(*root_).value();
  for (const CheckpointEntry& entry : entries) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("step-000000000020.1", "step-000000000020", "step-000000000010",
                                 "step-000000000005", "step-000000000030"));
}

// The job has gone back to step 1000 and comes to 1500 again.
TEST_F(Checkpoint, List_AfterGoingBack_HasTheOneSavedLastFirst) {
  Save(2000);
  Parts parts = WriteParts(*root_, 1500);
  parts.manifest.saved_at += absl::Hours(1);
  ASSERT_EQ(CommitCheckpoint(*parts.made.directory, parts.manifest), absl::OkStatus());
  EXPECT_EQ(ListCheckpoints(*root_).value()[0].parsed.step, 1500u);
}

TEST_F(Checkpoint, List_RenamedDirectory_IsDamaged) {
  Save(5);
  ASSERT_EQ(root_->Rename("step-000000000005", "step-000000000009"), absl::OkStatus());
  const auto entries = ListCheckpoints(*root_).value();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].state, CheckpointState::kDamaged);
  EXPECT_THAT(std::string(entries[0].problem.message()), HasSubstr("was renamed"));
}

TEST_F(Checkpoint, Remove_TakesOneAway) {
  const std::string name = Save(1);
  Save(2);
  CheckpointEntry entry = ListCheckpoints(*root_).value()[1];
  ASSERT_EQ(entry.name, name);
  EXPECT_EQ(RemoveCheckpoint(*root_, entry).value(), Removal::kRemoved);
  EXPECT_EQ(ListCheckpoints(*root_).value().size(), 1u);
  // Another process was faster.
  EXPECT_EQ(RemoveCheckpoint(*root_, entry).value(), Removal::kRemoved);
  entry.name = "lost+found";
  EXPECT_EQ(RemoveCheckpoint(*root_, entry).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optshard
