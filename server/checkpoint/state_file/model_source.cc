#include "server/checkpoint/state_file/model_source.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/utf8_prefix.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/state_file/atomic_file.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

constexpr char kIndexEnd[] = ".index.json";
constexpr char kOneFile[] = "model.safetensors";
constexpr int64_t kMostIndexBytes = int64_t{256} << 20;
constexpr size_t kMostShown = 200;  // of a name in a message

std::string Shown(absl::string_view name) { return EscapeName(Utf8Prefix(name, kMostShown)); }

absl::StatusOr<std::string> ReadText(File& file) {
  const auto bytes = file.Size();
  if (!bytes.ok()) return bytes.status();
  if (*bytes > kMostIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), " has ", *bytes, " bytes, an index has at most ", kMostIndexBytes));
  }
  std::string text(static_cast<size_t>(*bytes), '\0');
  const auto got = file.ReadAt(0, absl::MakeSpan(text));
  if (!got.ok()) return got.status();
  text.resize(*got);
  return text;
}

// The files of the tensors, by the tensors' names.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(const std::string& text) {
  const auto json = ParseStrictJson(text);
  if (!json.ok()) return json.status();
  absl::Status error;
  const JsonFields fields(*json, "", error);
  const nlohmann::json& map = fields.Object("weight_map");
  std::map<std::string, std::string> files;
  for (auto entry = map.begin(); error.ok() && entry != map.end(); ++entry) {
    const std::string* const name = entry.value().get_ptr<const std::string*>();
    if (name == nullptr || name->empty() || *name == "." || *name == ".." ||
        absl::StrContains(*name, '/') || HasControlCharacters(*name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map[\"", Shown(entry.key()),
                       "\"] is not the name of a file in the index's own directory"));
    }
    files.emplace(entry.key(), *name);
  }
  if (!error.ok()) return error;
  return files;
}

bool HasOrder(const StateFile& file) {
  // A zip's tensors are in the model's order; a .safetensors file has another one.
  const FileDocument& document = file.document();
  return !document.storages.empty() && document.storages[0].crc32.has_value();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> ModelSource::Open(FileSystem& system,
                                                               const std::string& path) {
  auto model = std::unique_ptr<ModelSource>(new ModelSource(path));
  const auto inside = system.OpenDirectory(path);
  absl::Status opened;
  if (inside.ok()) {
    const bool has_index = !absl::IsNotFound((*inside)->OpenFile(kModelIndexName).status());
    if (has_index) {
      opened = model->OpenIndexed(**inside, kModelIndexName);
    } else {
      opened = model->OpenOne(**inside, kOneFile);
      if (absl::IsNotFound(opened)) {
        opened = absl::NotFoundError(
            absl::StrCat(path, " has neither ", kModelIndexName, " nor ", kOneFile));
      }
    }
  } else {
    const SplitPath split = Split(path);
    const auto directory = system.OpenDirectory(split.directory);
    if (!directory.ok()) return directory.status();
    opened = absl::EndsWith(split.name, kIndexEnd) ? model->OpenIndexed(**directory, split.name)
                                                   : model->OpenOne(**directory, split.name);
  }
  if (!opened.ok()) return opened;
  return model;
}

absl::optional<ModelSource::Tensor> ModelSource::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::nullopt;
  return found->second;
}

absl::Status ModelSource::OpenOne(Directory& directory, absl::string_view name) {
  auto file = directory.OpenFile(name);
  if (!file.ok()) return file.status();
  auto opened = StateFile::Open(*std::move(file));
  if (!opened.ok()) return opened.status();
  const FileDocument& document = (*opened)->document();
  if (document.value.kind != FileKind::kDict) {
    return absl::InvalidArgumentError(
        absl::StrCat((*opened)->path(), " is no dict of tensors by name"));
  }
  const std::vector<FileValue>& elements = document.value.elements;
  for (size_t i = 0; i < elements.size(); i += 2) {
    if (elements[i].kind != FileKind::kText || elements[i + 1].kind != FileKind::kTensor) continue;
    const auto index = static_cast<size_t>(elements[i + 1].whole);
    tensors_.emplace(elements[i].text, Tensor{opened->get(), &document.tensors[index]});
    names_.push_back(elements[i].text);
  }
  has_order_ = HasOrder(**opened);
  files_.push_back(*std::move(opened));
  return absl::OkStatus();
}

absl::Status ModelSource::OpenIndexed(Directory& directory, absl::string_view name) {
  const auto index = directory.OpenFile(name);
  if (!index.ok()) return index.status();
  const auto text = ReadText(**index);
  if (!text.ok()) return text.status();
  const auto wanted = ParseIndex(*text);
  if (!wanted.ok()) return errors::WithContext(wanted.status(), (*index)->path());
  std::map<std::string, ModelSource> opened;
  for (const auto& [tensor, file] : *wanted) {
    auto found = opened.find(file);
    if (found == opened.end()) {
      if (opened.size() == kMostModelFiles) {
        return absl::InvalidArgumentError(absl::StrCat(
            (*index)->path(), " names more than ", kMostModelFiles, " files, which are too many"));
      }
      found = opened.emplace(file, ModelSource(file)).first;
      absl::Status done = found->second.OpenOne(directory, file);
      if (!done.ok()) return done;
    }
    const auto place = found->second.Find(tensor);
    if (!place) {
      return absl::DataLossError(absl::StrCat(directory.path(), "/", file, " has no tensor \"",
                                              Shown(tensor), "\", which ", (*index)->path(),
                                              " says it has"));
    }
    tensors_.emplace(tensor, *place);
    names_.push_back(tensor);
  }
  for (auto& [file, source] : opened) {
    for (std::unique_ptr<StateFile>& each : source.files_) files_.push_back(std::move(each));
  }
  return absl::OkStatus();
}

}  // namespace optshard
