#include "server/shard/inspection/timeline_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

// Gives each span the first row of its phase that is free by then.
class Rows {
 public:
  // The row's number; new ones are named by an event in `events`.
  int Place(const TimelineSpan& span, Rank rank, Json& events) {
    const std::string name = span.bucket < 0 ? "step" : span.phase;
    std::vector<Row>& rows = by_name_[name];
    for (Row& row : rows) {
      if (row.free_from_us <= span.start_us) {
        row.free_from_us = span.start_us + span.duration_us;
        return row.number;
      }
    }
    const std::string title = rows.empty() ? name : absl::StrCat(name, " ", rows.size() + 1);
    rows.push_back({next_, span.start_us + span.duration_us});
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", rank},
                      {"tid", next_},
                      {"args", {{"name", title}}}});
    return next_++;
  }

 private:
  struct Row {
    int number = 0;
    int64_t free_from_us = 0;
  };
  std::map<std::string, std::vector<Row>> by_name_;
  int next_ = 1;
};

}  // namespace

std::string TimelineJson(const MemberId& member, absl::Span<const TimelineSpan> spans) {
  Json events = Json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", member.rank},
                    {"args",
                     {{"name", absl::StrCat("rank ", member.rank, " of ", member.job, "/",
                                            member.optimizer)}}}});
  Rows rows;
  for (const TimelineSpan& span : spans) {
    const int row = rows.Place(span, member.rank, events);
    Json args = {{"step", span.step}};
    if (span.bucket >= 0) args["bucket"] = span.bucket;
    events.push_back(
        {{"ph", "X"},
         {"name", span.bucket < 0 ? span.phase : absl::StrCat(span.phase, " ", span.bucket)},
         {"cat", span.phase},
         {"pid", member.rank},
         {"tid", row},
         {"ts", span.start_us},
         {"dur", span.duration_us},
         {"args", std::move(args)}});
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  // Names may hold any bytes. Plain ASCII may be cut anywhere and stays text.
  return trace.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace optshard
