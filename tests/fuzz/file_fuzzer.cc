// Changes files of checkpoints, .pt files and indexes of models at random and reads them.
//   file_fuzzer [--seconds=N] [--seed=N]
// Ends with 1 where a reader dies, takes what cannot be, or says why not in a way that harms a
// terminal, and shows the file. The same seed makes the same files.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/fatal.h"
#include "server/checkpoint/block_checksums.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/state_file/model_files.h"
#include "server/checkpoint/state_file/model_source.h"
#include "server/checkpoint/state_file/pickle_reader.h"
#include "server/checkpoint/state_file/pickle_writer.h"
#include "server/checkpoint/state_file/state_file.h"
#include "server/checkpoint/strict_json.h"
#include "tests/fuzz/fuzzer_main.h"
#include "tests/server/checkpoint/saved_model.h"
#include "tests/testing/fake_file_system.h"

namespace optshard::testing {
namespace {

constexpr int kFilesBetweenLooks = 50;
constexpr uint64_t kMostMutations = 4;
constexpr size_t kMostMessageBytes = 2000;
constexpr int64_t kBigElements = 64;

// Numbers, texts and brackets that readers are asked about least often.
constexpr const char* kTokens[] = {
    "0", "-1", "1", "2", "0.5", "-0", "1e308", "1e999", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "1152921504606846976",
    "null", "true", "\"\"", "\"\\u0000\"", "\"..\"", "[]", "{}", "[", "]", "{", "}", ",", ":",
    "\"F64\"", "\"I8\"", "\"float64\"", "\"int8_dynamic_signed\"", "\"owner-00001.safetensors\"",
    // Of names
    "\"model-00002-of-00002.safetensors\"", "\"model.safetensors.index.json\"", "\\u0007",
    "\\u0000", "\\u009b", "/", "../",
    // Of pickles
    "(", "t", "]", "e", "u", "s", "R", "Q", "\x85", "\x86", "h\x01", "q\x01", "K\x7f",
    "J\xff\xff\xff\xff", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "ccollections\nOrderedDict\n",
    "ctorch\nDoubleStorage\n", "ctorch._utils\n_rebuild_tensor_v2\n", "cposix\nsystem\n"};

class ByteMutator {
 public:
  explicit ByteMutator(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t limit) {
    return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_);
  }

  void Mutate(std::string& bytes) {
    const size_t at = Below(bytes.size() + 1);
    const size_t count = Below(8) == 0 ? Below(bytes.size() - at + 1) : Below(12);
    switch (Below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ 1 << Below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(Below(256));
        break;
      case 2:
        bytes.erase(at, count);
        break;
      case 3:
        bytes.insert(Below(bytes.size() + 1), bytes.substr(at, count));
        break;
      case 4:
        bytes.insert(at, kTokens[Below(std::size(kTokens))]);
        break;
      default:
        ReplaceToken(bytes, at);
    }
  }

 private:
  // A number or a text of JSON, at or after a place, by another one.
  void ReplaceToken(std::string& bytes, size_t at) {
    const size_t begin = bytes.find_first_of("0123456789-\"", at);
    if (begin == std::string::npos) return;
    size_t end = bytes[begin] == '"' ? bytes.find('"', begin + 1)
                                     : bytes.find_first_not_of("0123456789-.", begin);
    if (end == std::string::npos) end = bytes.size();
    if (end < bytes.size() && bytes[begin] == '"') ++end;
    bytes.replace(begin, end - begin, kTokens[Below(std::size(kTokens))]);
  }

  std::mt19937_64 random_;
};

// How bytes were read.
struct Outcome {
  std::string wrong;     // what the reader may not do; empty: nothing
  bool refused = false;  // as no file that a writer has written may be
};

Outcome Taken() { return {}; }
Outcome Wrong(std::string what) { return {std::move(what), false}; }

// With an error, which has to be one that a file may bring about.
Outcome Refused(const absl::Status& status) {
  const bool expected = absl::IsInvalidArgument(status) || absl::IsDataLoss(status) ||
                        absl::IsFailedPrecondition(status);
  if (!expected || status.message().empty() || status.message().size() > kMostMessageBytes ||
      HasControlCharacters(status.message())) {
    return Wrong(absl::StrCat("the error ", status.ToString()));
  }
  return {"", true};
}

// --- What is read, and what must hold where it is taken.

Outcome ReadSafetensors(const std::string& bytes) {
  FakeFileSystem system;
  auto file = system.OpenDirectory("/").value()->CreateFile("f").value();
  if (!bytes.empty()) file->WriteAt(0, {bytes}).IgnoreError();
  const auto header = ReadSafetensorsHeader(*file);
  if (!header.ok()) return Refused(header.status());
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : header->tensors) {
    if (tensor.offset_bytes != end || tensor.bytes < 0) return Wrong("tensors that leave a gap");
    end += tensor.bytes;
  }
  if (header->data_begin_bytes + end != static_cast<int64_t>(bytes.size())) {
    return Wrong("tensors that are not the file's");
  }
  const auto again = LayOutSafetensors(header->tensors, header->metadata);
  if (!again.ok()) return Wrong(absl::StrCat("cannot be written: ", again.status().ToString()));
  if (again->header.data_bytes() != end) return Wrong("other bytes when written again");
  return Taken();
}

// With a checksum that is right, as one that a program of another's writes has.
Outcome ReadManifestText(const std::string& body) {
  const auto manifest = ParseManifest(absl::StrCat(
      "{\"checksum\": \"xxh3:", ChecksumText(ChecksumOf(body)), "\", \"checkpoint\": ", body));
  if (!manifest.ok()) return Refused(manifest.status());
  const absl::Status valid = manifest->Validate();
  if (!valid.ok()) return Wrong(absl::StrCat("is taken, and not valid: ", valid.ToString()));
  const auto again = ParseManifest(ToText(*manifest));
  if (!again.ok()) return Wrong(absl::StrCat("cannot be read again: ", again.status().ToString()));
  return ToText(*again) == ToText(*manifest) ? Taken() : Wrong("differs when read again");
}

Outcome ReadAsItIs(const std::string& text) {
  const auto manifest = ParseManifest(text);
  return manifest.ok() ? Taken() : Refused(manifest.status());
}

Outcome ReadPart(const std::string& text) {
  const auto part = ParseOwnerPart(text);
  if (!part.ok()) return Refused(part.status());
  const auto again = ParseOwnerPart(ToText(*part));
  if (!again.ok()) return Wrong(absl::StrCat("cannot be read again: ", again.status().ToString()));
  return ToText(*again) == ToText(*part) ? Taken() : Wrong("differs when read again");
}

// Kinds and sizes, without tensors' places.
std::string Outline(const FileValue& value) {
  std::string outline(1, static_cast<char>('a' + static_cast<int>(value.kind)));
  for (const FileValue& element : value.elements) outline += Outline(element);
  return outline + ".";
}

std::string WrongTensor(const FileDocument& document) {
  for (const FileTensor& tensor : document.tensors) {
    if (tensor.storage >= document.storages.size()) return "a tensor without a storage";
    if (tensor.bytes() == 0) continue;
    __int128 last = tensor.offset_elements;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      last += static_cast<__int128>(tensor.shape[d] - 1) * tensor.strides[d];
    }
    const int64_t bytes = document.storages[tensor.storage].bytes;
    if (tensor.offset_elements < 0 || last >= bytes / SizeOf(tensor.type) ||
        tensor.bytes() > bytes) {
      return "a tensor outside of its storage";
    }
  }
  return "";
}

Outcome ReadPickleText(const std::string& bytes) {
  auto document = ReadPickle(bytes);
  if (!document.ok()) return Refused(document.status());
  const std::string wrong = WrongTensor(*document);
  if (!wrong.empty()) return Wrong(wrong);
  // As the writer wants them.
  for (FileTensor& tensor : document->tensors) {
    tensor = ContiguousTensor(tensor.type, tensor.shape, tensor.storage);
  }
  const auto pickle = PickleOf(*document);
  if (!pickle.ok()) return Wrong(absl::StrCat("cannot be written: ", pickle.status().ToString()));
  const auto again = ReadPickle(*pickle);
  if (!again.ok()) return Wrong(absl::StrCat("cannot be read again: ", again.status().ToString()));
  return Outline(again->value) == Outline(document->value) ? Taken()
                                                           : Wrong("differs when read again");
}

Outcome ReadStateFile(const std::string& bytes) {
  FakeFileSystem system;
  auto file = system.OpenDirectory("/").value()->CreateFile("f").value();
  if (!bytes.empty()) file->WriteAt(0, {bytes}).IgnoreError();
  const auto state = StateFile::Open(std::move(file));
  if (!state.ok()) return Refused(state.status());
  const std::string wrong = WrongTensor((*state)->document());
  if (!wrong.empty()) return Wrong(wrong);
  for (const FileTensor& tensor : (*state)->document().tensors) {
    std::vector<char> values(static_cast<size_t>(tensor.bytes()));
    const absl::Status read = (*state)->Read(tensor, absl::MakeSpan(values));
    if (!read.ok()) return Refused(read);
  }
  return Taken();
}

absl::StatusOr<absl::string_view> Letters(size_t, int64_t, int64_t bytes) {
  constexpr absl::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  return kLetters.substr(0, static_cast<size_t>(bytes));
}

// Two files with three tensors, and their index.
void WriteSmallModel(FakeFileSystem& system) {
  const absl::Status written =
      WriteModel(*system.OpenDirectory("/").value(),
                 {ModelTensor("a", TensorType::kF32, {2}), ModelTensor("b", TensorType::kBF16, {}),
                  ModelTensor("c", TensorType::kF64, {0, 3})},
                 Letters, /*shard_bytes=*/8);
  if (!written.ok()) Fatal("a model cannot be written: %s", written.ToString());
}

absl::StatusOr<std::unique_ptr<ModelSource>> OpenIndex(FakeFileSystem& system,
                                                       const std::string& text) {
  const std::string path = absl::StrCat("/", kModelIndexName);
  system.Edit(path, [&text](std::string& bytes) { bytes = text; });
  return ModelSource::Open(system, path);
}

// Beside the files of the small model.
Outcome ReadModelIndex(const std::string& text) {
  FakeFileSystem system;
  WriteSmallModel(system);
  const auto model = OpenIndex(system, text);
  // A file that it names need not be there.
  if (absl::IsNotFound(model.status())) {
    return Refused(absl::InvalidArgumentError(model.status().message()));
  }
  if (!model.ok()) return Refused(model.status());
  nlohmann::json files = nlohmann::json::object();
  for (const std::string& name : (*model)->names()) {
    const auto found = (*model)->Find(name);
    if (!found) return Wrong("a tensor that is not found by its name");
    const FileDocument& document = found->file->document();
    const FileValue* const value = document.value.Find(name);
    if (value == nullptr || &document.tensors[static_cast<size_t>(value->whole)] != found->tensor) {
      return Wrong("a tensor that is not the file's of that name");
    }
    files[name] = absl::StripPrefix(found->file->path(), "/");
  }
  const auto again = OpenIndex(system, nlohmann::json({{"weight_map", files}}).dump());
  if (!again.ok()) return Wrong(absl::StrCat("cannot be read again: ", again.status().ToString()));
  return (*again)->names() == (*model)->names() ? Taken() : Wrong("differs when read again");
}

struct Seed {
  std::string name;
  std::string bytes;
  Outcome (*read)(const std::string& bytes);
};

FileDocument SmallState() {
  FileDocument document;
  document.tensors = {ContiguousTensor(TensorType::kF32, {2, 3}, 0),
                      ContiguousTensor(TensorType::kF64, {}, 1)};
  FileValue slots = FileValue::Dict();
  slots.Add(FileValue::Text("exp_avg"), FileValue::Tensor(0));
  slots.Add(FileValue::Text("step"), FileValue::Tensor(1));
  slots.Add(FileValue::Text("eta"), FileValue::Number(0.5));
  FileValue state = FileValue::Dict();
  state.Add(FileValue::Int(0), std::move(slots));
  FileValue betas = FileValue::Tuple();
  betas.elements = {FileValue::Number(0.9), FileValue::Number(0.999)};
  FileValue params = FileValue::List();
  params.elements = {FileValue::Int(0), FileValue::Int(300)};
  FileValue group = FileValue::Dict();
  group.Add(FileValue::Text("betas"), std::move(betas));
  group.Add(FileValue::Text("foreach"), FileValue());
  group.Add(FileValue::Text("maximize"), FileValue::Flag(false));
  group.Add(FileValue::Text("params"), std::move(params));
  FileValue groups = FileValue::List();
  groups.elements = {std::move(group)};
  document.value = FileValue::Dict();
  document.value.Add(FileValue::Text("state"), std::move(state));
  document.value.Add(FileValue::Text("param_groups"), std::move(groups));
  return document;
}

std::vector<Seed> Seeds() {
  FakeFileSystem system;
  auto root = system.OpenDirectory("/").value();
  const SavedModel model(3, kBigElements);
  const auto saved = model.Save(*root, 2, PartitionPolicy::kBalanced).value();
  const CheckpointManifest& manifest = saved.manifest;
  std::string file;
  system.Edit(absl::StrCat(saved.name, "/", OwnerFileName(0)),
              [&file](std::string& bytes) { file = bytes; });
  const std::string text = ToText(manifest);
  const std::string key = "\"checkpoint\": ";
  OwnerPart part;
  part.file = manifest.files[1];
  part.counts = {{0, 7, {}}, {2, 8, {{"mu_product", 0.5}}}};
  std::vector<Seed> seeds = {
      {"manifest", text.substr(text.find(key) + key.size()), ReadManifestText},
      {"manifest as it is", text, ReadAsItIs},
      {"owner part", ToText(part), ReadPart},
      {"safetensors", file, ReadSafetensors}};
  const auto small = LayOutSafetensors({{"a", TensorType::kF32, {2}, 0, 0}}, {{"k", "v"}}).value();
  seeds.push_back({"small safetensors", small.bytes + "datadata", ReadSafetensors});
  const FileDocument document = SmallState();
  seeds.push_back({"pickle", PickleOf(document).value(), ReadPickleText});
  for (const char* const name : {"/state.pt", "/state.safetensors"}) {
    const absl::Status written = WriteStateFile(system, name, document, Letters);
    if (!written.ok()) Fatal("%s cannot be written: %s", name, written.ToString());
    system.Edit(name, [&file](std::string& bytes) { file = bytes; });
    seeds.push_back({name, file, ReadStateFile});
  }
  FakeFileSystem model_system;
  WriteSmallModel(model_system);
  model_system.Edit(absl::StrCat("/", kModelIndexName),
                    [&file](std::string& bytes) { file = bytes; });
  seeds.push_back({"model index", file, ReadModelIndex});
  return seeds;
}

int Fuzz(uint64_t seed, absl::Duration time, FuzzReport& report) {
  const Clock& clock = Clock::Monotonic();
  const absl::Time end = clock.Now() + time;
  const std::vector<Seed> seeds = Seeds();
  for (const Seed& each : seeds) {
    const Outcome outcome = each.read(each.bytes);
    if (outcome.wrong.empty() && !outcome.refused) continue;
    std::fprintf(stderr, "%s as it was written: %s\n", each.name.c_str(),
                 outcome.refused ? "refused" : absl::Utf8SafeCHexEscape(outcome.wrong).c_str());
    return 1;
  }
  ByteMutator mutator(seed);
  int64_t files = 0;
  int64_t taken = 0;
  do {
    for (int i = 0; i < kFilesBetweenLooks; ++i, ++files) {
      const Seed& from = seeds[mutator.Below(seeds.size())];
      std::string bytes = from.bytes;
      const uint64_t mutations = mutator.Below(kMostMutations + 1);
      for (uint64_t done = 0; done < mutations; ++done) mutator.Mutate(bytes);
      report.Set(absl::StrCat("file ", files, ", ", from.name, ":\n", absl::CHexEscape(bytes)));
      const std::string wrong = from.read(bytes).wrong;
      if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", absl::Utf8SafeCHexEscape(wrong).c_str());
        return 1;
      }
      taken += mutations == 0 ? 1 : 0;
    }
  } while (clock.Now() < end);
  std::printf("read %d files, %d of them unchanged\n", static_cast<int>(files),
              static_cast<int>(taken));
  return 0;
}

}  // namespace
}  // namespace optshard::testing

int main(int argc, char** argv) {
  return optshard::testing::FuzzerMain(argc, argv, &optshard::testing::Fuzz);
}
