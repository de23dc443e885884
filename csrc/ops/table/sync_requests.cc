#include "ops/table/sync_requests.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/wire/wire.h"

namespace monolith::ops {
namespace {

// Fields of PredictRequest of TensorFlow Serving, of entries of a map, and of TensorProto.
constexpr std::uint32_t kInputs = 2;
constexpr std::uint32_t kKey = 1;
constexpr std::uint32_t kValue = 2;
constexpr std::uint32_t kDtype = 1;
constexpr std::uint32_t kShape = 2;
constexpr std::uint32_t kDim = 2;
constexpr std::uint32_t kSize = 1;
constexpr std::uint32_t kContent = 4;
constexpr std::uint64_t kFloat = 1;
constexpr std::uint64_t kUint8 = 4;
constexpr std::uint64_t kInt64 = 9;

// Puts an input into a request; `content` is the numbers as they are in memory.
void AddInput(const std::string& name, std::uint64_t dtype, const std::vector<std::int64_t>& dims,
              std::string_view content, std::string* request) {
  std::string shape;
  for (const std::int64_t size : dims) {
    std::string dim;
    core::WireWriter(&dim).Varint(kSize, static_cast<std::uint64_t>(size));
    core::WireWriter(&shape).Bytes(kDim, dim);
  }
  std::string tensor;
  core::WireWriter writer(&tensor);
  writer.Varint(kDtype, dtype);
  writer.Bytes(kShape, shape);
  writer.Bytes(kContent, content);
  std::string entry;
  core::WireWriter(&entry).Bytes(kKey, name);
  core::WireWriter(&entry).Bytes(kValue, tensor);
  core::WireWriter(request).Bytes(kInputs, entry);
}

template <typename Number>
std::string_view AsBytes(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

void AddIds(const std::string& name, const std::vector<std::int64_t>& ids, std::string* request) {
  AddInput(name, kInt64, {static_cast<std::int64_t>(ids.size())}, AsBytes(ids), request);
}

using IdsOf = std::vector<std::int64_t> core::RowsToSend::*;

std::int64_t CountIds(const std::vector<core::RowsToSend>& rows, IdsOf which) {
  std::int64_t count = 0;
  for (const core::RowsToSend& of_table : rows) {
    count += static_cast<std::int64_t>((of_table.*which).size());
  }
  return count;
}

// The ids of all tables in one list, and where those of each begin.
void AddSplitIds(const std::vector<core::RowsToSend>& rows, IdsOf which, std::string* request) {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> split{0};
  for (const core::RowsToSend& of_table : rows) {
    const std::vector<std::int64_t>& own = of_table.*which;
    ids.insert(ids.end(), own.begin(), own.end());
    split.push_back(static_cast<std::int64_t>(ids.size()));
  }
  AddIds("id", ids, request);
  AddIds("id_split", split, request);
}

// Rows as they are served, after what is there already.
void AppendPacked(const core::ServingForm& form, const core::RowsToSend& rows,
                  std::string* packed) {
  const std::size_t before = packed->size();
  packed->resize(before + rows.ids.size() * form.row_bytes());
  form.Pack(rows.values.data(), rows.ids.size(),
            reinterpret_cast<std::byte*>(packed->data() + before));
}

// The rows of all tables in one list.
void AddMultiRows(const SyncedTables& synced, const std::vector<core::RowsToSend>& rows,
                  std::string* request) {
  if (synced.forms.empty()) {
    std::vector<float> values;
    for (const core::RowsToSend& of_table : rows) {
      values.insert(values.end(), of_table.values.begin(), of_table.values.end());
    }
    AddInput("flat_value", kFloat, {static_cast<std::int64_t>(values.size())}, AsBytes(values),
             request);
    return;
  }
  std::string packed;
  std::vector<std::int64_t> fingerprints;
  for (std::size_t t = 0; t < rows.size(); ++t) {
    AppendPacked(*synced.forms[t], rows[t], &packed);
    fingerprints.push_back(synced.forms[t]->fingerprint());
  }
  AddInput("packed", kUint8, {static_cast<std::int64_t>(packed.size())}, packed, request);
  AddIds("form", fingerprints, request);
}

void AddSingleRows(const SyncedTables& synced, std::size_t t, const core::RowsToSend& rows,
                   std::string* request) {
  if (synced.forms.empty()) {
    AddInput(absl::StrCat(synced.names[t], "_value"), kFloat,
             {static_cast<std::int64_t>(rows.ids.size()),
              static_cast<std::int64_t>(synced.tables[t]->dim())},
             AsBytes(rows.values), request);
    return;
  }
  std::string packed;
  AppendPacked(*synced.forms[t], rows, &packed);
  AddInput(absl::StrCat(synced.names[t], "_packed"), kUint8,
           {static_cast<std::int64_t>(packed.size())}, packed, request);
  AddIds(absl::StrCat(synced.names[t], "_form"), {synced.forms[t]->fingerprint()}, request);
}

}  // namespace

SyncRequest MakeSyncRequest(const SyncedTables& synced, const std::vector<core::RowsToSend>& rows,
                            const std::string& assign_signature, bool is_removal) {
  SyncRequest request;
  const IdsOf which = is_removal ? &core::RowsToSend::removed : &core::RowsToSend::ids;
  request.num_ids = CountIds(rows, which);
  if (request.num_ids == 0) return request;
  const bool is_multi = !synced.multi_name.empty();
  const std::string assign =
      is_multi ? absl::StrCat(synced.multi_name, "/raw_assign") : assign_signature;
  const std::string remove =
      is_multi ? absl::StrCat(synced.multi_name, "/raw_remove") : "hashtable_remove";
  request.signature =
      is_removal ? remove : absl::StrCat(assign, synced.forms.empty() ? "" : "_packed");
  if (is_multi) {
    AddSplitIds(rows, which, &request.body);
    if (!is_removal) AddMultiRows(synced, rows, &request.body);
    return request;
  }
  for (std::size_t t = 0; t < rows.size(); ++t) {
    AddIds(absl::StrCat(synced.names[t], "_id"), rows[t].*which, &request.body);
    if (!is_removal) AddSingleRows(synced, t, rows[t], &request.body);
  }
  return request;
}

SyncRequest MakeListRequest(const SyncedTables& synced, const core::Follower::Question& question) {
  const bool is_multi = !synced.multi_name.empty();
  const auto add = [](const char* name, std::int64_t value, std::string* body) {
    AddInput(name, kInt64, {}, {reinterpret_cast<const char*>(&value), sizeof value}, body);
  };
  SyncRequest request;
  request.signature = is_multi ? absl::StrCat(synced.multi_name, "/raw_list_ids")
                               : absl::StrCat("hashtable_list_ids/", synced.names[question.table]);
  add("table", is_multi ? static_cast<std::int64_t>(question.table) : 0, &request.body);
  add("place", question.place, &request.body);
  add("max_ids", static_cast<std::int64_t>(question.max_ids), &request.body);
  return request;
}

}  // namespace monolith::ops
