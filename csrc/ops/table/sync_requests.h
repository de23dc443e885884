// The calls by which a server gets the rows that training has changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/row/serving_form.h"
#include "core/table/follower.h"

namespace monolith::ops {

// A call that a server has to get.
struct SyncRequest {
  std::string signature;  // Which function of the model.
  std::string body;       // A PredictRequest without its model_spec.
  std::int64_t num_ids = 0;
};

// Whose rows are sent, and how they look on their way.
struct SyncedTables {
  std::string multi_name;  // Of their set; empty: single tables.
  std::vector<std::string> names;
  core::Follower::Tables tables;
  std::vector<const core::ServingForm*> forms;  // Of all tables; empty: rows travel as floats.
};

// The call that brings rows, or has them removed; without ids if there are none of that kind. All
// tables are in it, since a model's function wants all its inputs. `assign_signature` is the
// function of single tables; that for rows in their serving form ends with "_packed".
[[nodiscard]] SyncRequest MakeSyncRequest(const SyncedTables& synced,
                                          const std::vector<core::RowsToSend>& rows,
                                          const std::string& assign_signature, bool is_removal);

// The call that asks a server for ids that it has.
[[nodiscard]] SyncRequest MakeListRequest(const SyncedTables& synced,
                                          const core::Follower::Question& question);

}  // namespace monolith::ops
