// Files of one snapshot: NAME-00000-of-00003 and so on, complete or not there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/lib/io/record_writer.h"
#include "tensorflow/core/platform/env.h"

namespace monolith::ops {

// "basename-00001-of-00004".
[[nodiscard]] std::string ShardName(absl::string_view basename, int shard, int num_shards);

// Lists the shards of `basename` in order. Leftovers of interrupted saves are passed over.
// NotFound if there is none; InvalidArgument if some are missing or belong to different snapshots.
[[nodiscard]] absl::Status FindShards(tensorflow::Env* env, const std::string& basename,
                                      std::vector<std::string>* files);

// Removes files named like shards of `basename` that are not among its `num_shards` shards.
void RemoveOtherShards(tensorflow::Env* env, const std::string& basename, int num_shards);

// Runs `work(i)` for i in [0, n) on threads of its own, so that files are written or read at the
// same time, and returns the first error. `work` does not throw.
[[nodiscard]] absl::Status ForEachShard(tensorflow::Env* env, int n,
                                        const std::function<absl::Status(int)>& work);

// A TFRecord file under a temporary name; it gets its final one in Commit. Destroying it without
// removes it.
class RecordFile {
 public:
  // Creates the parent directory where it is missing. `compression` is "" or "SNAPPY".
  [[nodiscard]] static absl::Status Create(tensorflow::Env* env, const std::string& final_name,
                                           const std::string& compression,
                                           std::unique_ptr<RecordFile>* file);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  [[nodiscard]] absl::Status Write(absl::string_view record);
  // Flushes and closes; call before Commit, so that several files can be renamed together late.
  [[nodiscard]] absl::Status Close();
  [[nodiscard]] absl::Status Commit();

 private:
  RecordFile(tensorflow::Env* env, std::string final_name, std::string temporary_name)
      : env_(env), final_name_(std::move(final_name)), temporary_name_(std::move(temporary_name)) {}

  tensorflow::Env* const env_;
  const std::string final_name_;
  const std::string temporary_name_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  std::unique_ptr<tensorflow::io::RecordWriter> writer_;
  bool closed_ = false;
  bool committed_ = false;
};

// Reads a TFRecord file from its start. Every error names the file.
class RecordSource {
 public:
  [[nodiscard]] static absl::Status Open(tensorflow::Env* env, const std::string& name,
                                         const std::string& compression,
                                         std::unique_ptr<RecordSource>* source);

  // OutOfRange at the end of the file, DataLoss where it is damaged.
  [[nodiscard]] absl::Status Read(tensorflow::tstring* record);

 private:
  explicit RecordSource(std::string name) : name_(std::move(name)) {}

  const std::string name_;
  std::unique_ptr<tensorflow::RandomAccessFile> file_;
  std::unique_ptr<tensorflow::io::SequentialRecordReader> reader_;
};

}  // namespace monolith::ops
