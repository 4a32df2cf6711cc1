// The tensors of a model by name, as Hugging Face has it: in one file, or in several with an index.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_SOURCE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_SOURCE_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/state_file/state_file.h"

namespace optshard {

// Each is open as long as the model is.
constexpr size_t kMostModelFiles = 512;

// Thread-safe.
class ModelSource {
 public:
  struct Tensor {
    const StateFile* file = nullptr;
    const FileTensor* tensor = nullptr;
  };

  // `path` is a file (.pt or .safetensors), an index that ends in ".index.json" and lies beside the
  // files that it names, or a directory that has such an index or a "model.safetensors".
  //   INVALID_ARGUMENT  what is there is no dict of tensors by name, or no index; the index names a
  //                     file elsewhere, or too many
  //   DATA_LOSS         a file lacks a tensor that the index says it has
  //   errors of StateFile::Open and of files
  static absl::StatusOr<std::unique_ptr<ModelSource>> Open(FileSystem& system,
                                                           const std::string& path);

  absl::optional<Tensor> Find(const std::string& name) const;

  // Of all tensors. In the model's own order where `has_order`: only .pt files keep that.
  const std::vector<std::string>& names() const { return names_; }
  bool has_order() const { return has_order_; }
  const std::string& path() const { return path_; }

 private:
  explicit ModelSource(std::string path) : path_(std::move(path)) {}
  absl::Status OpenOne(Directory& directory, absl::string_view name);
  absl::Status OpenIndexed(Directory& directory, absl::string_view name);

  const std::string path_;
  std::vector<std::unique_ptr<StateFile>> files_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> names_;
  bool has_order_ = false;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_SOURCE_H_
