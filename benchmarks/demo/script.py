"""What the three users say. One shared system prompt; a long first message each; short questions after it."""

from __future__ import annotations

SYSTEM = (
    "You are the help desk of the Harbour Street public library. You answer members in two or three plain "
    "sentences. The library is open from nine in the morning to eight in the evening on weekdays and from ten "
    "to four on Saturdays. Books may be kept for three weeks and renewed twice unless somebody else is waiting "
    "for them."
)

USERS: dict[str, tuple[str, ...]] = {
    "Ada": (
        "Hello, I joined the library last month with my two children, who are seven and eleven years old. We "
        "borrowed nine picture books, two novels, a field guide to birds, and an audio book about the history "
        "of the railway on the first of the month. Since then my daughter has fallen ill, so we could not come "
        "back to town, and the letter with the reminder reached us only yesterday. I would like to keep the "
        "field guide a little longer because we are counting the birds in the garden for a school project, but "
        "everything else can go back. My neighbour offered to carry the bags for us. How should we do this?",
        "Can my neighbour use my card?",
        "And what about the audio book?",
        "Thank you. Are you open on Saturday?",
    ),
    "Ben": (
        "Good morning. I am writing a long essay on the history of lighthouses for an evening class, and I need "
        "sources on three things: how the lamps changed from open fires to oil and then to electric light, who "
        "paid for the towers before the state took them over, and what the keepers did all day and all night. I "
        "have already read the two general books on your second floor and the short article in the local paper. "
        "What I miss most are diaries, letters, old maps and photographs, and perhaps a list of wrecks along "
        "our own coast. I can come on any weekday after five. Where would you begin if you were me?",
        "Do you keep old newspapers?",
        "May I take photographs of them?",
        "Which day is the quietest?",
    ),
    "Cleo": (
        "Hi, our reading group has met in members' kitchens for almost four years, but we have grown to "
        "fourteen people and no kitchen is large enough any more. We meet on the second Tuesday of each month "
        "from six until about half past seven, we bring our own tea and biscuits, and we always leave the place "
        "as we found it. Two of us use a wheelchair, so a room on the ground floor or a lift would be "
        "important, and one member hears badly and needs a quiet corner. We would also be glad to borrow "
        "several copies of the same novel each month, if that is possible. What can you offer us, and what "
        "would it cost?",
        "Is there a room with a lift?",
        "How many copies can we borrow?",
        "Can we book it for a year?",
    ),
}
