// The fields of a LineId: who saw what, when, and what they did.
#pragma once

#include <cstdint>
#include <string_view>

namespace monolith::core {

enum class LineIdKind { kInteger, kFixed64, kFloat, kString };

struct LineIdField {
  std::string_view name;
  std::uint32_t number;
  LineIdKind kind;
  bool is_repeated;
  float default_value;
};

inline constexpr LineIdField kLineIdFields[] = {
    {"uid", 2, LineIdKind::kFixed64, false, 0},
    {"req_time", 3, LineIdKind::kInteger, false, 0},
    {"item_id", 4, LineIdKind::kFixed64, false, 0},
    {"actions", 6, LineIdKind::kInteger, true, 0},
    {"chnid", 19, LineIdKind::kInteger, false, 0},
    {"pre_actions", 23, LineIdKind::kInteger, true, 0},
    {"sample_rate", 27, LineIdKind::kFloat, false, 1},
    {"special_strategies", 39, LineIdKind::kInteger, true, 0},
    {"device_type", 41, LineIdKind::kString, false, 0},
    {"cid", 48, LineIdKind::kString, false, 0},
    {"user_id", 49, LineIdKind::kString, false, 0},
    {"is_draw", 87, LineIdKind::kInteger, false, 0},
    {"rank", 145, LineIdKind::kInteger, false, 0},
    {"data_source_name", 235, LineIdKind::kString, false, 0},
};

// Returns null if there is no field of that name.
[[nodiscard]] inline const LineIdField* FindLineIdField(std::string_view name) {
  for (const LineIdField& field : kLineIdFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

}  // namespace monolith::core
