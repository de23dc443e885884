#include "ops/table/filter_files.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/system/sharded_files.h"
#include "ops/system/status_guard.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Filters may have many splits; so many files are written or read at the same time.
constexpr int kParallelFiles = 8;
// What a TFRecord adds to its content: the length and two checksums.
constexpr std::uint64_t kRecordFrameBytes = 16;

absl::Status ForEachSplit(tf::Env* env, int num_splits,
                          const std::function<absl::Status(int)>& work) {
  const int workers = std::min(num_splits, kParallelFiles);
  return ForEachShard(env, workers, [&](int worker) {
    for (int split = worker; split < num_splits; split += workers) {
      if (absl::Status status = work(split); !status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

// As Guard; what is wrong with the files themselves gets the status of its own that users know.
template <typename Fn>
absl::Status GuardDump(const std::string& files, Fn&& fn) {
  absl::Status dump;
  const absl::Status status = Guard([&] {
    try {
      fn();
    } catch (const core::CorruptFilterDump& e) {
      dump = absl::DataLossError(absl::StrCat(e.what(), " (", files, ")"));
    } catch (const core::FilterDumpMismatch& e) {
      dump = absl::ResourceExhaustedError(absl::StrCat(e.what(), " (", files, ")"));
    }
  });
  return status.ok() ? dump : status;
}

absl::Status WriteSplit(const core::SlidingHashFilter::Snapshot& snapshot, int split,
                        RecordFile* file) {
  // The core knows nothing of Status, so a failed write leaves its loop as an exception.
  struct WriteFailed : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  absl::Status written;
  const absl::Status status = Guard([&] {
    snapshot.Write(split, [&](std::string_view record) {
      written = file->Write(record);
      if (!written.ok()) throw WriteFailed("write failed");
    });
  });
  return written.ok() ? status : written;
}

absl::Status ReadSplit(tf::Env* env, const std::string& name, int split,
                       core::SlidingHashFilter::Restoration* restoration) {
  std::unique_ptr<RecordSource> source;
  if (absl::Status s = RecordSource::Open(env, name, /*compression=*/"", &source); !s.ok()) {
    return s;
  }
  tf::tstring buffer;
  absl::Status read;
  std::uint64_t num_bytes = 0;
  const absl::Status understood = GuardDump(name, [&] {
    restoration->Read(split, [&](std::string_view* record) {
      read = source->Read(&buffer);
      if (read.ok()) num_bytes += buffer.size() + kRecordFrameBytes;
      *record = std::string_view(buffer.data(), buffer.size());
      return read.ok();
    });
  });
  // A record that cannot be read explains what the core missed.
  if (!read.ok() && !absl::IsOutOfRange(read)) return read;
  if (!understood.ok()) return understood;
  // TensorFlow takes a few bytes that are too short for a record for the end of the file.
  std::uint64_t file_bytes = 0;
  if (absl::Status s = env->GetFileSize(name, &file_bytes); !s.ok()) return s;
  if (num_bytes == file_bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("Behind the last record are bytes that belong to none (", name, ")"));
}

// Checks that the file of every split is there. If instead there are files of another number of
// splits, `other` gets the name of one.
absl::Status CheckPresent(tf::Env* env, const std::string& basename, int num_splits,
                          std::string* other) {
  std::string missing;
  int num_missing = 0;
  for (int split = 0; split < num_splits; ++split) {
    const std::string name = ShardName(basename, split, num_splits);
    const absl::Status exists = env->FileExists(name);
    if (absl::IsNotFound(exists)) {
      if (num_missing++ == 0) missing = name;
    } else if (!exists.ok()) {
      return exists;
    }
  }
  if (num_missing == 0) return absl::OkStatus();
  std::vector<std::string> others;
  if (num_missing == num_splits && FindShards(env, basename, &others).ok()) {
    *other = others.front();
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("The saved hash filter ", basename, " lacks ",
                                          num_missing, " of its ", num_splits,
                                          " files, the first is ", missing,
                                          "; restore a checkpoint that was saved with the filter "
                                          "on, or turn the filter's restore off."));
}

}  // namespace

absl::Status SaveFilter(tf::Env* env, const std::string& basename,
                        core::SlidingHashFilter* filter) {
  const int num_splits = static_cast<int>(filter->split_num());
  std::vector<std::unique_ptr<RecordFile>> files(num_splits);
  {
    const core::SlidingHashFilter::Snapshot snapshot(filter);
    const absl::Status written = ForEachSplit(env, num_splits, [&](int split) {
      const std::string name = ShardName(basename, split, num_splits);
      absl::Status status = RecordFile::Create(env, name, /*compression=*/"", &files[split]);
      if (status.ok()) status = WriteSplit(snapshot, split, files[split].get());
      return status.ok() ? files[split]->Close() : status;
    });
    if (!written.ok()) return written;
  }
  for (const auto& file : files) {
    if (absl::Status status = file->Commit(); !status.ok()) return status;
  }
  RemoveOtherShards(env, basename, num_splits);
  return absl::OkStatus();
}

absl::Status RestoreFilter(tf::Env* env, const std::string& basename,
                           core::SlidingHashFilter* filter) {
  const int num_splits = static_cast<int>(filter->split_num());
  std::string other;
  absl::Status status = CheckPresent(env, basename, num_splits, &other);
  if (!status.ok()) return status;
  std::unique_ptr<core::SlidingHashFilter::Restoration> restoration;
  status =
      Guard([&] { restoration = std::make_unique<core::SlidingHashFilter::Restoration>(filter); });
  if (!status.ok()) return status;
  // Reading a file of another number of splits gives the error that says so.
  if (!other.empty()) return ReadSplit(env, other, 0, restoration.get());
  status = ForEachSplit(env, num_splits, [&](int split) {
    return ReadSplit(env, ShardName(basename, split, num_splits), split, restoration.get());
  });
  if (!status.ok()) return status;
  return GuardDump(basename + "-*", [&] { restoration->Commit(); });
}

}  // namespace monolith::ops
