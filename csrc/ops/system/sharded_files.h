// Files of one snapshot: NAME-00000-of-00003 and so on, complete or not there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/system/page_cache.h"
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
// same time, and returns the first error. `work` does not throw. There are no more threads than
// processors: others want to go on working meanwhile.
[[nodiscard]] absl::Status ForEachShard(tensorflow::Env* env, int n,
                                        const std::function<absl::Status(int)>& work);

// For the `work` of ForEachShard: from here on, its thread leaves the processors to whoever else
// wants them. A table is saved while others use it; on an idle machine it is saved as fast as ever.
void GiveWay();

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

  [[nodiscard]] absl::Status AppendBuffer();

  tensorflow::Env* const env_;
  const std::string final_name_;
  const std::string temporary_name_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  std::unique_ptr<tensorflow::io::RecordWriter> writer_;  // Only with compression,
  std::string buffer_;                                    // and these only without.
  std::unique_ptr<PageCacheHints> hints_;
  std::uint64_t appended_ = 0;  // Bytes of the file,
  std::uint64_t hinted_ = 0;    // and how many are on their way to the disk.
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
  // Reads some records, at most `most`; none at the end of the file. They are valid until the next
  // call, and none of them is copied if the file is not compressed.
  [[nodiscard]] absl::Status ReadBatch(std::size_t most, std::vector<std::string_view>* records);

 private:
  explicit RecordSource(std::string name) : name_(std::move(name)) {}

  [[nodiscard]] absl::Status ReadCompressed(std::size_t most,
                                            std::vector<std::string_view>* records);
  [[nodiscard]] absl::Status Fill(std::uint64_t frame_bytes);

  const std::string name_;
  std::unique_ptr<tensorflow::RandomAccessFile> file_;
  std::unique_ptr<tensorflow::io::SequentialRecordReader> reader_;  // Only with compression,
  std::vector<tensorflow::tstring> copies_;
  std::unique_ptr<PageCacheHints> hints_;  // and these only without.
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;     // Of what has not been handed out,
  std::size_t end_ = 0;       // and its end.
  std::uint64_t offset_ = 0;  // In the file, of `end_`.
  std::uint64_t hinted_ = 0;  // In the file: up to here the disk has been asked.
  std::uint64_t file_bytes_ = 0;
};

}  // namespace monolith::ops
