#include "ops/sharded_files.h"

#include <algorithm>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/platform/random.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

constexpr std::int64_t kReadBufferBytes = 4 << 20;
constexpr int kMaxFileThreads = 16;

// Parses "-00001-of-00004" whole; anything else is not the name of a shard.
bool ParseShardSuffix(absl::string_view suffix, int* shard, int* num_shards) {
  return suffix.size() == 15 && absl::ConsumePrefix(&suffix, "-") &&
         absl::SimpleAtoi(suffix.substr(0, 5), shard) && suffix.substr(5, 4) == "-of-" &&
         absl::SimpleAtoi(suffix.substr(9), num_shards) && *shard >= 0 && *num_shards >= 0;
}

// File names below the directory of `basename` that start with its last part and '-'. Listing and
// comparing, rather than matching a pattern, keeps special characters in names harmless.
absl::Status ListCandidates(tf::Env* env, const std::string& basename,
                            std::vector<std::string>* suffixes) {
  const std::string directory(tf::io::Dirname(basename));
  const std::string prefix(tf::io::Basename(basename));
  std::vector<std::string> children;
  const absl::Status status = env->GetChildren(directory.empty() ? "." : directory, &children);
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  for (const std::string& child : children) {
    if (absl::StartsWith(child, prefix + "-")) suffixes->push_back(child.substr(prefix.size()));
  }
  return absl::OkStatus();
}

absl::Status NameFile(const absl::Status& status, const std::string& name) {
  if (status.ok() || absl::StrContains(status.message(), name)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (file ", name, ")"));
}

}  // namespace

std::string ShardName(absl::string_view basename, int shard, int num_shards) {
  return absl::StrFormat("%s-%05d-of-%05d", basename, shard, num_shards);
}

absl::Status FindShards(tf::Env* env, const std::string& basename,
                        std::vector<std::string>* files) {
  std::vector<std::string> suffixes;
  if (absl::Status s = ListCandidates(env, basename, &suffixes); !s.ok()) return s;
  int num_shards = -1;
  std::map<int, std::string> found;
  for (const std::string& suffix : suffixes) {
    int shard = 0;
    int total = 0;
    if (!ParseShardSuffix(suffix, &shard, &total)) continue;
    const std::string name = basename + suffix;
    if (num_shards == -1) num_shards = total;
    if (total != num_shards) {
      return absl::InvalidArgumentError(absl::StrCat("Filename ", name, " doesn't match nshards. ",
                                                     num_shards,
                                                     "; remove the files of the other snapshot."));
    }
    if (shard >= total) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shard ", shard, " exceeds ", total, " for ", name));
    }
    found[shard] = name;
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("There is no valid sharded files for ", basename));
  }
  for (int i = 0; i < num_shards; ++i) {
    const auto it = found.find(i);
    if (it == found.end()) {
      return absl::InvalidArgumentError(absl::StrCat("Shard ", i, " doesn't show up for ", basename,
                                                     "; it should be ",
                                                     ShardName(basename, i, num_shards), "."));
    }
    files->push_back(it->second);
  }
  return absl::OkStatus();
}

void RemoveOtherShards(tf::Env* env, const std::string& basename, int num_shards) {
  std::vector<std::string> suffixes;
  if (!ListCandidates(env, basename, &suffixes).ok()) return;
  for (const std::string& suffix : suffixes) {
    int shard = 0;
    int total = 0;
    if (ParseShardSuffix(suffix, &shard, &total) && total != num_shards) {
      // A file that will not go is reported by the restore that meets it.
      env->DeleteFile(basename + suffix).IgnoreError();
    }
  }
}

absl::Status ForEachShard(tf::Env* env, int n, const std::function<absl::Status(int)>& work) {
  std::vector<absl::Status> statuses(n);
  {
    tf::thread::ThreadPool pool(env, "monolith_files", std::clamp(n, 1, kMaxFileThreads));
    for (int i = 0; i < n; ++i) {
      pool.Schedule([&statuses, &work, i] { statuses[i] = work(i); });
    }
  }  // The pool waits for its work.
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RecordFile::Create(tf::Env* env, const std::string& final_name,
                                const std::string& compression, std::unique_ptr<RecordFile>* file) {
  const std::string directory(tf::io::Dirname(final_name));
  if (!directory.empty()) {
    if (absl::Status s = env->RecursivelyCreateDir(directory); !s.ok()) return s;
  }
  const std::string temporary = absl::StrCat(final_name, "-tmp-", tf::random::New64());
  file->reset(new RecordFile(env, final_name, temporary));
  absl::Status status = env->NewWritableFile(temporary, &(*file)->file_);
  if (!status.ok()) return NameFile(status, temporary);
  (*file)->writer_ = std::make_unique<tf::io::RecordWriter>(
      (*file)->file_.get(), tf::io::RecordWriterOptions::CreateRecordWriterOptions(compression));
  return absl::OkStatus();
}

RecordFile::~RecordFile() {
  if (committed_) return;
  (void)Close();
  env_->DeleteFile(temporary_name_).IgnoreError();
}

absl::Status RecordFile::Write(absl::string_view record) {
  return NameFile(writer_->WriteRecord(record), temporary_name_);
}

absl::Status RecordFile::Close() {
  if (closed_ || writer_ == nullptr) return absl::OkStatus();
  closed_ = true;
  absl::Status status = writer_->Close();
  // Sync before rename: after a power cut the final name must not point at missing data.
  if (status.ok()) status = file_->Sync();
  const absl::Status closed = file_->Close();
  return NameFile(status.ok() ? closed : status, temporary_name_);
}

absl::Status RecordFile::Commit() {
  if (absl::Status s = Close(); !s.ok()) return s;
  if (absl::Status s = env_->RenameFile(temporary_name_, final_name_); !s.ok()) return s;
  committed_ = true;
  return absl::OkStatus();
}

absl::Status RecordSource::Open(tf::Env* env, const std::string& name,
                                const std::string& compression,
                                std::unique_ptr<RecordSource>* source) {
  source->reset(new RecordSource(name));
  absl::Status status = env->NewRandomAccessFile(name, &(*source)->file_);
  if (!status.ok()) return NameFile(status, name);
  auto options = tf::io::RecordReaderOptions::CreateRecordReaderOptions(compression);
  options.buffer_size = kReadBufferBytes;
  (*source)->reader_ =
      std::make_unique<tf::io::SequentialRecordReader>((*source)->file_.get(), options);
  return absl::OkStatus();
}

absl::Status RecordSource::Read(tf::tstring* record) {
  return NameFile(reader_->ReadRecord(record), name_);
}

}  // namespace monolith::ops
