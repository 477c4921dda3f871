// ControlChannel on this machine: who is let in, what arrives, and that a closed end is told.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "blipft/control_channel.h"

using namespace blipft;

namespace {

using Kind = ControlChannel::Event::Kind;

// The next event, within a few seconds.
ControlChannel::Event next(ControlChannel& channel) {
  for (int i = 0; i < 50; ++i)
    if (const auto events = channel.poll(0.1); !events.empty()) {
      REQUIRE(events.size() == 1);
      return events[0];
    }
  FAIL("nothing has come");
  return {};
}

}  // namespace

TEST_SUITE("control channel") {
  TEST_CASE("ranks join, messages go both ways, and a closed end is reported") {
    ControlChannel server(3);
    auto other = std::make_unique<ControlChannel>(server.address(), 2, server.address().host);
    REQUIRE(other->open());
    const auto joined = next(server);
    CHECK((joined.kind == Kind::joined && joined.rank == 2 && std::string(joined.message.text) == server.address().host));
    ControlMessage message{7, 2, {1, 2, 3, 4}};
    message.set_text(std::string(1000, 'x'));
    other->send(0, message);
    const auto came = next(server);
    CHECK((came.kind == Kind::message && came.rank == 2 && came.message.type == 7 && came.message.values[3] == 4));
    CHECK(std::string(came.message.text) == std::string(sizeof message.text - 1, 'x'));
    server.send(1, message);               // not there: nothing happens
    server.send(2, {9, 0, {5}});
    CHECK(next(*other).message.type == 9);
    other.reset();
    const auto closed = next(server);
    CHECK((closed.kind == Kind::closed && closed.rank == 2));

    auto again = std::make_unique<ControlChannel>(server.address(), 1, "another host");
    CHECK(again->open() == (server.address().count > 0));
  }

  TEST_CASE("an end that does not read is given up, not waited for") {
    ControlChannel server(2);
    ControlChannel deaf(server.address(), 1, server.address().host);
    next(server);
    for (int i = 0; i < 100000; ++i) server.send(1, {1});  // 50 MB: more than buffers hold
    const auto events = deaf.poll(0.1);
    for (const auto& event : events) CHECK((event.kind == Kind::message && event.message.type == 1));  // whole ones
  }

  TEST_CASE("who has not the token is not let in; a port where nobody listens is no connection") {
    auto server = std::make_unique<ControlChannel>(2);
    ControlAddress wrong = server->address();
    wrong.token[0] ^= 1;
    ControlChannel stranger(wrong, 1, wrong.host);
    CHECK(server->poll(0.1).empty());
    CHECK(server->poll(0.1).empty());
    const auto refused = next(stranger);
    CHECK(refused.kind == Kind::closed);
    const ControlAddress gone = server->address();
    server.reset();
    CHECK(!ControlChannel(gone, 1, gone.host, 0.2).open());
  }
}
