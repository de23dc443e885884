#include "ops/system/sharded_files.h"

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/wire/record_frame.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/platform/random.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

constexpr std::int64_t kCompressedReadBytes = 4 << 20;
constexpr int kMaxFileThreads = 16;
// What goes to the system at a time: small enough to stay in a processor's cache on the way.
constexpr std::size_t kBufferBytes = std::size_t{512} << 10;
// What the disk is told of at a time, and how far a reader asks for more than it needs yet.
constexpr std::uint64_t kHintBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kReadAheadBytes = std::uint64_t{16} << 20;

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

// A file compressed with Snappy is a row of blocks: four bytes with the length of what follows, the
// most significant first, and in there how long it is when it is inflated, as a varint.
constexpr std::uint64_t kBlockHeaderBytes = 4;
constexpr std::uint64_t kMaxVarintBytes = 5;
// Three bytes of a block become 64 at the most.
constexpr std::uint64_t kMaxInflation = 22;

// Checks the lengths of all blocks. TensorFlow's reader takes them as they are: for those of a
// damaged file it asks for gigabytes, and ends the process if it does not get them.
absl::Status CheckSnappyBlocks(const tf::RandomAccessFile& file, std::uint64_t file_bytes) {
  for (std::uint64_t offset = 0; offset < file_bytes;) {
    const std::uint64_t left = file_bytes - offset;
    char bytes[kBlockHeaderBytes + kMaxVarintBytes] = {};
    absl::string_view got;
    const absl::Status status =
        file.Read(offset, got, absl::MakeSpan(bytes, std::min<std::uint64_t>(sizeof(bytes), left)));
    if (!status.ok() && !absl::IsOutOfRange(status)) return status;
    std::uint64_t block_bytes = 0;
    std::uint64_t inflated_bytes = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto byte = static_cast<unsigned char>(got[i]);
      if (i < kBlockHeaderBytes) {
        block_bytes = block_bytes << 8 | byte;
        continue;
      }
      inflated_bytes |= std::uint64_t{byte & 0x7Fu} << (7 * (i - kBlockHeaderBytes));
      if (byte < 0x80) break;
    }
    if (left <= kBlockHeaderBytes || block_bytes == 0 || block_bytes > left - kBlockHeaderBytes ||
        inflated_bytes > kMaxInflation * block_bytes) {
      return absl::DataLossError(absl::StrCat(
          "corrupted block at ", offset, ": it is said to have ", block_bytes, " bytes, and ",
          inflated_bytes, " when it is inflated, and the file has ", left, " from there on"));
    }
    offset += kBlockHeaderBytes + block_bytes;
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
    const int most = std::clamp(tf::port::MaxParallelism(), 1, kMaxFileThreads);
    tf::thread::ThreadPool pool(env, "monolith_files", std::clamp(n, 1, most));
    for (int i = 0; i < n; ++i) {
      pool.Schedule([&statuses, &work, i] { statuses[i] = work(i); });
    }
  }  // The pool waits for its work.
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void GiveWay() {
#if defined(__linux__)
  thread_local bool gave_way = false;  // A thread may work on several shards.
  if (std::exchange(gave_way, true)) return;
  constexpr int kSteps = 5;  // A third of the share of a thread that does not give way.
  errno = 0;
  const int nice = getpriority(PRIO_PROCESS, 0);  // On Linux, of this thread alone.
  if (errno == 0) (void)setpriority(PRIO_PROCESS, 0, nice + kSteps);
#endif
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
  if (compression.empty()) {
    (*file)->hints_ = std::make_unique<PageCacheHints>(temporary);
  } else {
    (*file)->writer_ = std::make_unique<tf::io::RecordWriter>(
        (*file)->file_.get(), tf::io::RecordWriterOptions::CreateRecordWriterOptions(compression));
  }
  return absl::OkStatus();
}

RecordFile::~RecordFile() {
  if (committed_) return;
  (void)Close();
  env_->DeleteFile(temporary_name_).IgnoreError();
}

absl::Status RecordFile::Write(absl::string_view record) {
  if (writer_ != nullptr) return NameFile(writer_->WriteRecord(record), temporary_name_);
  core::AppendRecord(std::string_view(record.data(), record.size()), &buffer_);
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : AppendBuffer();
}

absl::Status RecordFile::AppendBuffer() {
  const absl::Status status = file_->Append(buffer_);
  appended_ += buffer_.size();
  buffer_.clear();
  if (appended_ - hinted_ >= kHintBytes) {
    hints_->StartWriting(hinted_, appended_ - hinted_);
    hinted_ = appended_;
  }
  return NameFile(status, temporary_name_);
}

absl::Status RecordFile::Close() {
  if (closed_ || file_ == nullptr) return absl::OkStatus();
  closed_ = true;
  absl::Status status = writer_ != nullptr ? writer_->Close() : AppendBuffer();
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
  if (compression.empty()) {
    (*source)->hints_ = std::make_unique<PageCacheHints>(name);
    return NameFile(env->GetFileSize(name, &(*source)->file_bytes_), name);
  }
  status = env->GetFileSize(name, &(*source)->file_bytes_);
  if (status.ok()) status = CheckSnappyBlocks(*(*source)->file_, (*source)->file_bytes_);
  if (!status.ok()) return NameFile(status, name);
  auto options = tf::io::RecordReaderOptions::CreateRecordReaderOptions(compression);
  options.buffer_size = kCompressedReadBytes;
  (*source)->reader_ =
      std::make_unique<tf::io::SequentialRecordReader>((*source)->file_.get(), options);
  return absl::OkStatus();
}

absl::Status RecordSource::Read(tf::tstring* record) {
  if (reader_ != nullptr) return NameFile(reader_->ReadRecord(record), name_);
  std::vector<std::string_view> one;
  if (absl::Status s = ReadBatch(1, &one); !s.ok()) return s;
  if (one.empty()) return absl::OutOfRangeError(absl::StrCat("end of file ", name_));
  record->assign(one[0].data(), one[0].size());
  return absl::OkStatus();
}

absl::Status RecordSource::ReadBatch(std::size_t most, std::vector<std::string_view>* records) {
  records->clear();
  if (reader_ != nullptr) return ReadCompressed(most, records);
  while (records->size() < most) {
    std::string_view record;
    std::uint64_t frame_bytes = 0;
    const std::string_view left(buffer_.get() + begin_, end_ - begin_);
    switch (core::ReadRecord(left, &record, &frame_bytes)) {
      case core::RecordRead::kOk:
        records->push_back(record);
        begin_ += frame_bytes;
        break;
      case core::RecordRead::kCorrupt:
        return absl::DataLossError(
            absl::StrCat("corrupted record at ", offset_ - left.size(), " (file ", name_, ")"));
      case core::RecordRead::kIncomplete:
        // To read on would move the records that are already there.
        if (!records->empty()) return absl::OkStatus();
        if (left.empty() && offset_ == file_bytes_) return absl::OkStatus();
        if (frame_bytes - left.size() > file_bytes_ - offset_) {
          return absl::DataLossError(
              absl::StrCat("truncated record at ", offset_ - left.size(), " (file ", name_, ")"));
        }
        if (absl::Status s = Fill(frame_bytes); !s.ok()) return NameFile(s, name_);
    }
  }
  return absl::OkStatus();
}

absl::Status RecordSource::ReadCompressed(std::size_t most,
                                          std::vector<std::string_view>* records) {
  copies_.resize(most);
  for (std::size_t i = 0; i < most; ++i) {
    const absl::Status status = reader_->ReadRecord(&copies_[i]);
    if (absl::IsOutOfRange(status)) break;
    if (!status.ok()) return NameFile(status, name_);
    records->emplace_back(copies_[i].data(), copies_[i].size());
  }
  return absl::OkStatus();
}

// Reads on, until a frame of that size, which the file has, or more is in the buffer.
absl::Status RecordSource::Fill(std::uint64_t frame_bytes) {
  const std::size_t left = end_ - begin_;
  if (frame_bytes > capacity_) {
    capacity_ = std::max<std::size_t>(kBufferBytes, frame_bytes);
    std::unique_ptr<char[]> larger(new char[capacity_]);
    if (left > 0) std::memcpy(larger.get(), buffer_.get() + begin_, left);
    buffer_ = std::move(larger);
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, left);
  }
  begin_ = 0;
  end_ = left;
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(capacity_ - left, file_bytes_ - offset_));
  for (; hinted_ < std::min(offset_ + kReadAheadBytes, file_bytes_); hinted_ += kHintBytes) {
    hints_->StartReading(hinted_, kHintBytes);
  }
  absl::string_view got;
  const absl::Status status =
      file_->Read(offset_, got, absl::MakeSpan(buffer_.get() + end_, wanted));
  if (!status.ok() && !absl::IsOutOfRange(status)) return status;
  if (got.size() < wanted) {
    return absl::DataLossError(absl::StrCat("the file became shorter while it was read: ",
                                            got.size(), " of ", wanted, " bytes at ", offset_));
  }
  if (got.data() != buffer_.get() + end_) std::memcpy(buffer_.get() + end_, got.data(), got.size());
  end_ += got.size();
  offset_ += got.size();
  return absl::OkStatus();
}

}  // namespace monolith::ops
